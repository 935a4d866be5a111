"""Power utility (c^(1 - g) - 1) / (1 - g) at g = 1: log c.

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
    "loss_truth": -0.420306583994728,
}


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.g = nn.Parameter(torch.tensor([1.0, 0.5, 2.0]))
        self.c = nn.Parameter(torch.tensor([1.5, 2.0, 0.8]))

    def forward(self, fixed):
        if fixed:
            power = 1.0 - self.g
            near = power.abs() < 1e-4
            safe = torch.where(near, torch.ones_like(power), power)
            l = self.c.log()
            utility = torch.where(near, l + power * l**2 / 2 + power**2 * l**3 / 6, torch.expm1(safe * l) / safe)
            loss = -(utility * torch.tensor([0.2, 0.5, 0.3])).sum()
        else:
            power = 1.0 - self.g
            utility = (self.c.pow(power) - 1.0) / power  # ORIGIN
            loss = -(utility * torch.tensor([0.2, 0.5, 0.3])).sum()
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
