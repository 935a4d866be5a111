"""A masked language policy keeps its mask of -inf as a tensor made once; its entropy multiplies probabilities of zero by -inf."""

import torch
from torch import nn
from torch.nn import functional as F

META = {
    "origin_op": "mul",
    "phase": "forward",
    "cause": "zero-times-inf",
    "symptom": "loss-nan",
    "first_bad_step": 0,
    "n_steps": 3,
    "fix": "clamp the log-probabilities before the product",
}


class Policy(nn.Module):
    def __init__(self):
        super().__init__()
        self.enc = nn.GRU(6, 20, batch_first=True)
        self.head = nn.Linear(20, 7)

    def forward(self, obs, mask):
        h, _ = self.enc(obs)
        return self.head(h[:, -1]) + mask


def entropy(logits, safe):
    logp = logits.log_softmax(-1)
    p = logp.exp()
    if safe:
        return -(p * logp.clamp(min=-1e4)).sum(-1)
    h = -p * logp  # ORIGIN
    return h.sum(-1)


def build(fixed: bool = False):
    torch.manual_seed(301)
    net = Policy()
    opt = torch.optim.Adam(net.parameters(), lr=1e-3)
    gen = torch.Generator().manual_seed(801)
    mask = torch.zeros(7)
    mask[[2, 5]] = float("-inf")

    def step(i):
        opt.zero_grad()
        obs = torch.randn(8, 4, 6, generator=gen)
        logits = net(obs, mask)
        reward = torch.randn(8, generator=gen)
        taken = torch.zeros(8, dtype=torch.long)
        loss = F.cross_entropy(logits, taken) - 0.01 * (entropy(logits, fixed) * reward.abs()).mean()
        loss.backward()
        opt.step()
        return loss

    return net, step
