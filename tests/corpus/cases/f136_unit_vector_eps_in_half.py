"""A half-precision retrieval tower divides by its norm plus an epsilon kept in the config; 1e-8 is zero in half."""

import torch
from torch import nn
from torch.nn import functional as F

META = {
    "origin_op": "div",
    "phase": "forward",
    "cause": "eps-underflow",
    "also_causes": ("norm-at-zero", "div-by-zero"),
    "symptom": "loss-nan",
    "first_bad_step": 2,
    "n_steps": 5,
    "fix": "use eps = 1e-4",
}


class Tower(nn.Module):
    def __init__(self, eps):
        super().__init__()
        self.eps = eps
        self.proj = nn.Linear(10, 12, bias=False)

    def forward(self, bag):
        h = torch.relu(self.proj(bag))
        size = h.norm(dim=-1, keepdim=True) + self.eps
        return h / size  # ORIGIN


def build(fixed: bool = False):
    torch.manual_seed(233)
    net = Tower(1e-4 if fixed else 1e-8).half()
    opt = torch.optim.SGD(net.parameters(), lr=1e-3)
    gen = torch.Generator().manual_seed(733)

    def step(i):
        opt.zero_grad()
        bag = torch.rand(7, 10, generator=gen)
        if i == 2:
            bag[2] = 0.0
        u = net(bag.half()).float()
        sim = u @ u.t() / 0.2
        loss = F.cross_entropy(sim, torch.arange(7).roll(1))
        loss.backward()
        opt.step()
        return loss

    return net, step
