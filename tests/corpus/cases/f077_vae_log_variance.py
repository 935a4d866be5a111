"""A VAE's KL term takes exp(logvar); for a document a hundred times longer than the rest the encoder's logvar is beyond 88."""

import torch
from torch import nn

META = {
    "origin_op": "exp",
    "phase": "forward",
    "cause": "exp-overflow",
    "symptom": "loss-nan",
    "first_bad_step": 4,
    "n_steps": 7,
    "fix": "clamp the log-variance",
}


class TopicVAE(nn.Module):
    def __init__(self, limit, words=20, topics=4):
        super().__init__()
        self.limit = limit
        self.enc = nn.Sequential(nn.Linear(words, 24), nn.Softplus(), nn.Linear(24, 24), nn.Softplus())
        self.mean, self.logvar = nn.Linear(24, topics), nn.Linear(24, topics)
        self.dec = nn.Linear(topics, words)

    def forward(self, counts, noise):
        h = self.enc(counts)
        mean, logvar = self.mean(h), self.logvar(h)
        if self.limit:
            logvar = logvar.clamp(-self.limit, self.limit)
        var = logvar.exp()  # ORIGIN
        kl = 0.5 * (var + mean.square() - 1 - logvar).sum(1)
        logp = torch.log_softmax(self.dec(torch.softmax(mean + var.sqrt() * noise, -1)), -1)
        return (kl - (counts * logp).sum(1)).mean()


def build(fixed: bool = False):
    torch.manual_seed(77)
    net = TopicVAE(8.0 if fixed else None)
    opt = torch.optim.Adam(net.parameters(), lr=1e-4)
    gen = torch.Generator().manual_seed(177)

    def step(i):
        counts = torch.poisson(torch.rand(8, 20, generator=gen), generator=gen)
        if i == 4:
            counts[6] *= 1500.0
        opt.zero_grad()
        loss = net(counts, torch.randn(8, 4, generator=gen))
        loss.backward()
        opt.step()
        return loss

    return net, step
