"""A mixture of experts renormalises the gates that survived its capacity; a token that was dropped everywhere divides by zero."""

import torch
from torch import nn
from torch.nn import functional as F

META = {
    "origin_op": "div",
    "phase": "forward",
    "cause": "div-by-zero",
    "symptom": "loss-nan",
    "first_bad_step": 2,
    "n_steps": 5,
    "fix": "clamp the sum",
}


class Moe(nn.Module):
    def __init__(self, floor):
        super().__init__()
        self.floor = floor
        self.gate = nn.Linear(6, 4)
        self.experts = nn.ModuleList([nn.Linear(6, 6) for _ in range(4)])

    def forward(self, x, capacity):
        gates = self.gate(x).softmax(-1)
        _top, idx = gates.topk(2, -1)
        keep = torch.zeros_like(gates).scatter(1, idx, 1.0)
        keep = keep * (keep.cumsum(0) <= capacity)
        gates = gates * keep
        gates = gates / (gates.sum(-1, keepdim=True) + self.floor)  # ORIGIN
        return sum(gates[:, k : k + 1] * e(x) for k, e in enumerate(self.experts))


def build(fixed: bool = False):
    torch.manual_seed(420)
    net = Moe(1e-9 if fixed else 0.0)
    opt = torch.optim.Adam(net.parameters(), lr=1e-3)
    gen = torch.Generator().manual_seed(920)

    def step(i):
        opt.zero_grad()
        x = torch.randn(12, 6, generator=gen)
        loss = F.mse_loss(net(x, 2 if i == 2 else 12), x.flip(1))
        loss.backward()
        opt.step()
        return loss

    return net, step
