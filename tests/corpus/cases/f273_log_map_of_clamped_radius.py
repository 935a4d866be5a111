"""Hyperbolic log map at the origin: artanh of a radius clamped to 1 - 1e-15, which float32 rounds to one."""

import torch
from torch import nn
from torch.nn import functional as F

META = {
    "origin_op": "atanh",
    "phase": "forward",
    "cause": "inverse-function-at-edge",
    "also_causes": ("eps-underflow",),
    "symptom": "loss-nan",
    "first_bad_step": 2,
    "n_steps": 4,
    "fix": "clamp at 1 - 1e-3",
}


class LogMap0(nn.Module):
    def __init__(self, margin):
        super().__init__()
        self.margin = margin

    def forward(self, y):
        r = y.norm(dim=-1, keepdim=True).clamp(min=1e-15)
        return y / r * torch.atanh(r.clamp(max=1 - self.margin))  # ORIGIN


class HyperbolicHead(nn.Module):
    def __init__(self, margin):
        super().__init__()
        self.lin, self.log, self.out = nn.Linear(4, 3), LogMap0(margin), nn.Linear(3, 2)

    def forward(self, x):
        h = self.lin(x)
        r = h.norm(dim=-1, keepdim=True)
        return self.out(self.log(torch.tanh(r) * h / r))


def build(fixed: bool = False):
    torch.manual_seed(928)
    net = HyperbolicHead(1e-3 if fixed else 1e-15)
    opt = torch.optim.Adam(net.parameters(), lr=1e-3)
    gen = torch.Generator().manual_seed(933)

    def step(i):
        opt.zero_grad()
        x = torch.randn(8, 4, generator=gen)
        if i == 2:
            x[3] *= 80
        loss = F.cross_entropy(net(x), torch.arange(8) % 2)
        loss.backward()
        opt.step()
        return loss

    return net, step
