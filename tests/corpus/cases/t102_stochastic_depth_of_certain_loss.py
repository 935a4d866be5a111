"""Stochastic depth with rates spaced from zero to one over the blocks: the last block is always dropped and divides by a keep rate of zero."""

import torch
from torch import nn

META = {
    "origin_op": "div",
    "also_ops": ("mul", "div_"),
    "phase": "forward",
    "cause": "div-by-zero",
    "also_causes": ("zero-times-inf",),
    "symptom": "loss-nan",
    "first_bad_step": 0,
    "n_steps": 4,
    "fix": "the last rate below one",
}


def drop_path(x, rate):
    keep = 1.0 - rate
    mask = (torch.rand(x.shape[0], 1) < keep).to(x.dtype)
    return x / keep * mask  # ORIGIN


class Block(nn.Module):
    def __init__(self, dim, rate):
        super().__init__()
        self.norm, self.lin, self.rate = nn.LayerNorm(dim), nn.Linear(dim, dim), rate

    def forward(self, x):
        return x + drop_path(torch.relu(self.lin(self.norm(x))), self.rate)


def build(fixed: bool = False):
    torch.manual_seed(602)
    rates = torch.linspace(0, 0.5 if fixed else 1.0, 4).tolist()
    net = nn.Sequential(*[Block(12, rate) for rate in rates], nn.Linear(12, 3))
    opt = torch.optim.SGD(net.parameters(), lr=0.05)
    gen = torch.Generator().manual_seed(702)

    def step(i):
        x = torch.randn(16, 12, generator=gen)
        y = x[:, :3].argmax(1)
        opt.zero_grad()
        loss = nn.functional.cross_entropy(net(x), y)
        loss.backward()
        opt.step()
        return loss

    return net, step
