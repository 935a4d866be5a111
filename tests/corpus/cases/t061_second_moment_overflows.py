"""Particle counts near 1e22 as they come: the gradient is finite, its square is not, and Adam's infinite second moment freezes the weight."""

import torch
from torch import nn

META = {
    "origin_op": "addcmul_",
    "phase": "optimizer",
    "cause": "optimizer-arithmetic",
    "also_causes": ("dtype-overflow", "exploding-gradient"),
    "symptom": "silent-zero-update",
    "first_bad_step": 0,
    "n_steps": 5,
    "watch": "update:linear.weight",
    "fix": "count in units of 1e21",
}


class Calorimeter(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(6, 1)
        self.detail = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 1))

    def forward(self, counts):
        shares = counts / counts.sum(1, keepdim=True)
        return (self.linear(counts) + self.detail(shares)).squeeze(-1)


def build(fixed: bool = False):
    torch.manual_seed(461)
    net = Calorimeter()
    opt = torch.optim.Adam(net.parameters(), lr=1e-3)
    gen = torch.Generator().manual_seed(561)
    unit = 1e21 if fixed else 1.0

    def step(i):
        counts = torch.rand(16, 6, generator=gen) * 1e22
        energy = 0.5 * counts.sum(1)
        opt.zero_grad()
        loss = nn.functional.l1_loss(net(counts / unit), energy / unit)
        loss.backward()
        opt.step()  # ORIGIN
        return loss

    return net, step
