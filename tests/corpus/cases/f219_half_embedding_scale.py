"""Loss weights are divided out by a frequency table cast to half, where rare frequencies of 1e-9 are zero."""

import torch
from torch import nn
from torch.nn import functional as F

META = {
    "origin_op": "reciprocal",
    "also_ops": ("div",),
    "phase": "forward",
    "cause": "dtype-underflow",
    "also_causes": ("div-by-zero",),
    "symptom": "loss-inf",
    "first_bad_step": 0,
    "n_steps": 3,
    "fix": "keep the table in float32",
}


class Rare(nn.Module):
    def __init__(self, dtype):
        super().__init__()
        self.lin = nn.Linear(4, 3)
        self.dtype = dtype

    def forward(self, x, freq, y):
        f = freq.to(self.dtype)
        w = 1e-4 / f[y].float()  # ORIGIN
        return (F.cross_entropy(self.lin(x), y, reduction="none") * w).mean()


def build(fixed: bool = False):
    torch.manual_seed(509)
    net = Rare(torch.float32 if fixed else torch.float16)
    opt = torch.optim.SGD(net.parameters(), lr=1e-9)
    gen = torch.Generator().manual_seed(1009)
    freq = torch.tensor([0.9, 1e-2, 1e-9])

    def step(i):
        opt.zero_grad()
        x = torch.randn(6, 4, generator=gen)
        loss = net(x, freq, torch.arange(6) % 3)
        loss.backward()
        opt.step()
        return loss

    return net, step
