"""A head that starts at zero is wrapped by weight_norm, which divides the direction by a norm of zero."""

import torch
from torch import nn
from torch.nn import functional as F
from torch.nn.utils.parametrizations import weight_norm

META = {
    "origin_op": "_weight_norm_interface",
    "also_ops": ("_weight_norm", "div"),
    "phase": "forward",
    "cause": "norm-at-zero",
    "also_causes": ("div-by-zero",),
    "symptom": "loss-nan",
    "first_bad_step": 0,
    "n_steps": 3,
    "fix": "start from small non-zero weights",
}


class Head(nn.Module):
    def __init__(self, start):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(4, 16), nn.Mish())
        last = nn.Linear(16, 2)
        nn.init.constant_(last.weight, start)
        self.last = weight_norm(last)

    def forward(self, x):
        return self.last(self.body(x))  # ORIGIN


def build(fixed: bool = False):
    torch.manual_seed(1321)
    net = Head(1e-2 if fixed else 0.0)
    opt = torch.optim.Adam(net.parameters(), lr=1e-3)
    gen = torch.Generator().manual_seed(1326)

    def step(i):
        opt.zero_grad()
        x = torch.randn(8, 4, generator=gen)
        loss = F.cross_entropy(net(x), torch.arange(8) % 2)
        loss.backward()
        opt.step()
        return loss

    return net, step
