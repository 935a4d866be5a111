"""Capsules are squashed by rsqrt of their squared length; a capsule whose inputs are all dead has length zero."""

import torch
from torch import nn
from torch.nn import functional as F

META = {
    "origin_op": "rsqrt",
    "also_ops": ("mul",),
    "phase": "forward",
    "cause": "norm-at-zero",
    "also_causes": ("div-by-zero", "zero-times-inf"),
    "symptom": "loss-nan",
    "first_bad_step": 2,
    "n_steps": 5,
    "fix": "add 1e-7 to the squared length",
}


class Caps(nn.Module):
    def __init__(self, eps):
        super().__init__()
        self.eps = eps
        self.prim = nn.Conv1d(3, 16, 3, bias=False)
        self.out = nn.Linear(4, 2)

    def forward(self, x):
        u = torch.relu(self.prim(x)).view(x.shape[0], 4, 4, -1).mean(-1)
        s2 = (u**2).sum(-1, keepdim=True)
        inv = torch.rsqrt(s2 + self.eps)  # ORIGIN
        v = s2 / (1 + s2) * inv * u
        return self.out(v.mean(1))


def build(fixed: bool = False):
    torch.manual_seed(418)
    net = Caps(1e-7 if fixed else 0.0)
    opt = torch.optim.Adam(net.parameters(), lr=1e-3)
    gen = torch.Generator().manual_seed(918)

    def step(i):
        opt.zero_grad()
        x = torch.randn(5, 3, 10, generator=gen)
        if i == 2:
            x[2] = 0.0
        loss = F.cross_entropy(net(x), torch.arange(5) % 2)
        loss.backward()
        opt.step()
        return loss

    return net, step
