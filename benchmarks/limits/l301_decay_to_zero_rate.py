"""Saturating exponential (1 - e^(-k t)) / k at k = 0: t.

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
    "loss_truth": 0.11682599416660515,
}


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.k = nn.Parameter(torch.tensor([0.0, 0.8, 2.5]))

    def forward(self, fixed):
        if fixed:
            t = torch.tensor([1.0, 2.0, 0.5])
            near = self.k.abs() < 1e-3
            safe = torch.where(near, torch.ones_like(self.k), self.k)
            z = self.k * t
            level = torch.where(near, t * (1 - z / 2 + z * z / 6), -torch.expm1(-safe * t) / safe)
            loss = ((level - 0.7) ** 2).mean()
        else:
            t = torch.tensor([1.0, 2.0, 0.5])
            level = (1 - torch.exp(-self.k * t)) / self.k  # ORIGIN
            loss = ((level - 0.7) ** 2).mean()
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
