"""A half-precision contrast layer takes sqrt(var + 1e-10): the epsilon is zero in half, and a flat patch has an infinite slope."""

import torch
from torch import nn
from torch.nn import functional as F

META = {
    "origin_op": "sqrt",
    "phase": "backward",
    "cause": "eps-underflow",
    "also_causes": ("sqrt-at-zero", "std-of-constant"),
    "symptom": "grad-nan",
    "first_bad_step": 2,
    "n_steps": 5,
    "fix": "eps = 1e-3",
}


class Contrast(nn.Module):
    def __init__(self, eps):
        super().__init__()
        self.eps = eps
        self.inp = nn.Linear(8, 16, bias=False)
        self.out = nn.Linear(1, 2)

    def forward(self, x):
        h = self.inp(x)
        var = (h - h.mean(-1, keepdim=True)).square().mean(-1, keepdim=True)
        return self.out(torch.sqrt(var + self.eps))  # ORIGIN


def build(fixed: bool = False):
    torch.manual_seed(413)
    net = Contrast(1e-3 if fixed else 1e-10).half()
    opt = torch.optim.SGD(net.parameters(), lr=1e-1)
    gen = torch.Generator().manual_seed(913)

    def step(i):
        opt.zero_grad()
        x = torch.randn(6, 8, generator=gen)
        if i == 2:
            x[2] = 0.0
        loss = F.cross_entropy(net(x.half()).float(), torch.arange(6) % 2)
        loss.backward()
        opt.step()
        return loss

    return net, step
