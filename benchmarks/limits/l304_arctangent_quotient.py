"""atan(r) / r of a camera's radial model at the optical centre: 1.

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
    "loss_truth": 1.7425934924447009,
}


def undistort(radius):
    theta = torch.atan(radius)
    return theta / radius  # ORIGIN


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.r = nn.Parameter(torch.tensor([[0.0, 0.5], [1.4, -0.3]]))

    def forward(self, fixed):
        if fixed:
            near = self.r.abs() < 1e-3
            safe = torch.where(near, torch.ones_like(self.r), self.r)
            ratio = torch.where(near, 1 - self.r**2 / 3, torch.atan(safe) / safe)
            loss = (ratio - 0.8).abs().sum() + (self.r * ratio).sum()
        else:
            ratio = undistort(self.r)
            loss = (ratio - 0.8).abs().sum() + (self.r * ratio).sum()
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
