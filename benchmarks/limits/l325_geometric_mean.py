"""Geometric mean by prod of 12 large factors.

Source: well-known fault
"""
import torch
from torch import nn

META = {
    "origin_op": "prod",
    "phase": "forward",
    "cause": "dtype-overflow",
    "symptom": "loss-inf",
    "first_bad_step": 0,
    "n_steps": 2,
    "kind": "overflow",
    "loss_truth": 0.5297201529569661,
}


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.x = nn.Parameter(torch.tensor([5e3, 4e3, 7e3, 9e3, 2e3, 6e3, 8e3, 3e3, 5e3, 4e3, 9e3, 7e3]))

    def forward(self, fixed):
        if fixed:
            g = self.x.log().mean().exp()
            loss = (g / 5000 - 1) ** 2 + g * 1e-4
        else:
            g = self.x.prod() ** (1 / 12)  # ORIGIN
            loss = (g / 5000 - 1) ** 2 + g * 1e-4
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
