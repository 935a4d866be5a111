"""The uniformity loss log(mean(exp(-t d^2))) without normalised embeddings: all distances are large and every exp
is zero.
"""

import torch
from torch import nn
from torch.nn import functional as F

META = {
    "origin_op": "log",
    "phase": "forward",
    "cause": "log-of-zero",
    "symptom": "loss-inf",
    "first_bad_step": 2,
    "n_steps": 4,
    "fix": "normalise the embeddings, or logsumexp",
}


class Encoder(nn.Module):
    def __init__(self, unit):
        super().__init__()
        self.net, self.unit = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4)), unit

    def forward(self, x):
        z = self.net(x)
        return F.normalize(z, dim=-1) if self.unit else z


def uniformity(z, t=2):
    return torch.pdist(z, p=2).pow(2).mul(-t).exp().mean().log()  # ORIGIN


def build(fixed: bool = False):
    torch.manual_seed(1342)
    net = Encoder(fixed)
    opt = torch.optim.Adam(net.parameters(), lr=1e-3)
    gen = torch.Generator().manual_seed(1347)

    def step(i):
        opt.zero_grad()
        x = torch.randn(8, 8, generator=gen)
        if i == 2:
            x = x * 400
        z = net(x)
        loss = uniformity(z) + 0.1 * (z - net(x + 0.01)).square().sum(1).mean()
        loss.backward()
        opt.step()
        return loss

    return net, step
