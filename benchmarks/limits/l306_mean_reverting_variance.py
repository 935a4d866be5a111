"""Variance of an Ornstein-Uhlenbeck process, s^2 (1 - e^(-2 k t)) / (2 k) at k = 0: s^2 t.

Source: well-known fault
"""
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
    "loss_truth": 1.3811374053515169,
}


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.k = nn.Parameter(torch.tensor([0.0, 0.5, 1.5, 0.1]))
        self.s = nn.Parameter(torch.tensor([0.5, 1.0, 0.7, 0.2]))

    def forward(self, fixed):
        if fixed:
            horizon = 2.0
            near = self.k.abs() < 1e-4
            safe = torch.where(near, torch.ones_like(self.k), self.k)
            z = self.k * horizon
            g = torch.where(near, horizon * (1 - z + 2 * z * z / 3), -torch.expm1(-2 * safe * horizon) / (2 * safe))
            variance = self.s**2 * g
            nll = 0.5 * (torch.log(variance) + torch.tensor([0.2, 0.1, 0.5, 0.3]) / variance)
            loss = nll.sum()
        else:
            horizon = 2.0
            variance = self.s**2 * (1 - torch.exp(-2 * self.k * horizon)) / (2 * self.k)  # ORIGIN
            nll = 0.5 * (torch.log(variance) + torch.tensor([0.2, 0.1, 0.5, 0.3]) / variance)
            loss = nll.sum()
        return loss


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
    net, _ = build(True)
    net.double()
    loss = net(True)
    grads = torch.autograd.grad(loss, list(net.parameters()))
    out = {n: g for (n, _), g in zip(net.named_parameters(), grads)}
    return out
