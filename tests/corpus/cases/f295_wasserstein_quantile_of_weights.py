"""Weights are normalised by their own cumulative sum, exponentials of large negative costs that all underflow."""

import torch
from torch import nn
from torch.nn import functional as F

META = {
    "origin_op": "div",
    "phase": "forward",
    "cause": "div-by-zero",
    "symptom": "loss-nan",
    "first_bad_step": 2,
    "n_steps": 4,
    "fix": "subtract the largest energy",
}


class Boltzmann(nn.Module):
    def __init__(self, stable):
        super().__init__()
        self.cost, self.stable = nn.Linear(3, 5), stable

    def forward(self, x, beta):
        energy = -beta * F.softplus(self.cost(x))
        if self.stable:
            energy = energy - energy.detach().amax(1, keepdim=True)
        w = energy.exp()
        return (w / w.sum(1, keepdim=True)).cumsum(1)  # ORIGIN


def build(fixed: bool = False):
    torch.manual_seed(2698)
    net = Boltzmann(fixed)
    opt = torch.optim.SGD(net.parameters(), lr=1e-3)
    gen = torch.Generator().manual_seed(2703)

    def step(i):
        opt.zero_grad()
        loss = net(torch.randn(6, 3, generator=gen), 900.0 if i == 2 else 1.0).mul(torch.arange(5)).mean()
        loss.backward()
        opt.step()
        return loss

    return net, step
