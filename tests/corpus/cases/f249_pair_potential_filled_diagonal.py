"""Reciprocal pair distances: the infinite diagonal is overwritten in place, its gradient is not repaired."""

import torch
from torch import nn

META = {
    "origin_op": "pow",
    "phase": "backward",
    "cause": "repair-forward-only",
    "also_causes": ("where-grad-trap", "div-by-zero", "zero-times-inf", "pow-fraction-at-zero"),
    "symptom": "grad-nan",
    "first_bad_step": 0,
    "n_steps": 3,
    "fix": "put one on the diagonal before the root",
}


class PairEnergy(nn.Module):
    def __init__(self, early):
        super().__init__()
        self.charge = nn.Parameter(torch.tensor([1.0, -1.0, 0.5, 0.5]))
        self.box, self.early = nn.Parameter(torch.tensor(1.0)), early

    def forward(self, xyz):
        d2 = ((xyz[:, None] - xyz[None]) * self.box).square().sum(-1)
        if self.early:
            d2 = d2 + torch.eye(len(xyz))
        inv = d2**-0.5  # ORIGIN
        inv = inv.fill_diagonal_(0.0)  # ALSO
        return torch.einsum("i,j,ij->", self.charge, self.charge, inv)


def build(fixed: bool = False):
    torch.manual_seed(1349)
    net = PairEnergy(fixed)
    opt = torch.optim.Adam(net.parameters(), lr=1e-3)
    gen = torch.Generator().manual_seed(1354)

    def step(i):
        opt.zero_grad()
        loss = net(torch.randn(4, 3, generator=gen)).square() * 1e-3
        loss.backward()
        opt.step()
        return loss

    return net, step
