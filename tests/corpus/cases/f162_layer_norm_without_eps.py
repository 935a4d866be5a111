"""A reimplemented model sets layer_norm_eps to zero; a sample whose features are all zero has variance zero."""

import torch
from torch import nn
from torch.nn import functional as F

META = {
    "origin_op": "native_layer_norm",
    "also_ops": ("layer_norm",),
    "phase": "forward",
    "cause": "std-of-constant",
    "also_causes": ("div-by-zero",),
    "symptom": "loss-nan",
    "first_bad_step": 2,
    "n_steps": 5,
    "fix": "eps=1e-5",
}


class Net(nn.Module):
    def __init__(self, eps):
        super().__init__()
        self.inp = nn.Linear(7, 16, bias=False)
        self.norm = nn.LayerNorm(16, eps=eps)
        self.out = nn.Linear(16, 3)

    def forward(self, x):
        return self.out(F.gelu(self.norm(self.inp(x))))  # ORIGIN


def build(fixed: bool = False):
    torch.manual_seed(304)
    net = Net(1e-5 if fixed else 0.0)
    opt = torch.optim.Adam(net.parameters(), lr=1e-3)
    gen = torch.Generator().manual_seed(804)

    def step(i):
        opt.zero_grad()
        x = torch.randn(9, 7, generator=gen)
        if i == 2:
            x[5] = 0.0
        loss = F.cross_entropy(net(x), torch.arange(9) % 3)
        loss.backward()
        opt.step()
        return loss

    return net, step
