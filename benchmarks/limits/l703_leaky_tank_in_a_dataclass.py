"""Outflow (1 - exp(-k T)) / k of a tank whose settings are a dataclass; one tank does not leak.

Source: well-known fault
"""

from dataclasses import dataclass

import torch
from torch import nn

META = {
    "origin_op": "div",
    "phase": "forward",
    "cause": "div-by-zero",
    "symptom": "loss-nan",
    "first_bad_step": 0,
    "n_steps": 2,
    "kind": "removable",
    "loss_truth": 0.2196053729,
}


@dataclass
class Tank:
    k: torch.Tensor
    inflow: torch.Tensor
    horizon: float = 2.0


def stored(tank):
    lost = 1.0 - torch.exp(-tank.k * tank.horizon)
    return tank.inflow * lost / tank.k  # ORIGIN


def stored_stably(tank):
    near = tank.k.abs() < 1e-4
    k = torch.where(near, torch.ones_like(tank.k), tank.k)
    T = tank.horizon
    series = T - tank.k * T**2 / 2 + tank.k**2 * T**3 / 6
    return tank.inflow * torch.where(near, series, -torch.expm1(-k * T) / k)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.k = nn.Parameter(torch.tensor([0.0, 0.4]))
        self.q = nn.Parameter(torch.tensor([1.0, 1.5]))

    def forward(self, fixed):
        tank = Tank(k=self.k, inflow=self.q)
        level = stored_stably(tank) if fixed else stored(tank)
        return (level - torch.tensor([1.5, 2.5])).square().mean()


def build(fixed: bool = False):
    net = Net()
    opt = torch.optim.SGD(net.parameters(), lr=1e-6)

    def step(i):
        opt.zero_grad()
        loss = net(fixed)
        loss.backward()
        opt.step()
        return loss

    return net, step


def truth():
    net, step = build(True)
    net.double()
    step(0)
    true = {name: p.grad for name, p in net.named_parameters()}
    return true
