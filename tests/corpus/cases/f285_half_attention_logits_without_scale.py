"""Attention in float16 without the 1/sqrt(d): the scores of two long vectors overflow."""

import torch
from torch import nn
from torch.nn import functional as F

META = {
    "origin_op": "bmm",
    "also_ops": ("einsum",),
    "phase": "forward",
    "cause": "dtype-overflow",
    "symptom": "loss-nan",
    "first_bad_step": 2,
    "n_steps": 4,
    "fix": "scale before the product",
}


class Unscaled(nn.Module):
    def __init__(self, scale):
        super().__init__()
        self.q, self.k, self.v, self.scale = nn.Linear(16, 16), nn.Linear(16, 16), nn.Linear(16, 2), scale

    def forward(self, x):
        q, k = self.q(x) * self.scale, self.k(x) * self.scale
        return torch.softmax(torch.einsum("bid,bjd->bij", q, k), -1).matmul(self.v(x)).float().mean(1)  # ORIGIN


def build(fixed: bool = False):
    torch.manual_seed(2663)
    net = Unscaled(0.05 if fixed else 1.0).half()
    opt = torch.optim.SGD(net.parameters(), lr=0.1)
    gen = torch.Generator().manual_seed(2668)

    def step(i):
        opt.zero_grad()
        x = torch.randn(2, 4, 16, generator=gen)
        if i == 2:
            x[1] *= 200
        loss = F.cross_entropy(net(x.half()), torch.tensor([0, 1]))
        loss.backward()
        opt.step()
        return loss

    return net, step
