"""Heading atan(vy / vx) of agents; one stands still and is not counted.

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
    "kind": "masked",
    "loss_truth": 2.047181685,
}


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.gain = nn.Parameter(torch.tensor([[1.0, 0.2], [-0.1, 0.9]]))

    def forward(self, fixed):
        v = torch.tensor([[1.0, 0.5], [0.0, 0.0], [-0.4, 0.8]])
        moving = torch.tensor([1.0, 0.0, 1.0])
        u = v @ self.gain
        if fixed:
            u = u[moving > 0]
            return (torch.atan(u[:, 1] / u[:, 0]) - 0.5).pow(2).sum()
        heading = torch.atan(u[:, 1] / u[:, 0])  # ORIGIN
        return ((heading - 0.5).pow(2) * moving).sum()


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
