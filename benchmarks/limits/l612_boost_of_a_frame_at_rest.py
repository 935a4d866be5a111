"""Lorentz boost of a position, x + (g - 1) (v.x) v / v^2 - g v t, for a frame at rest.

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
    "loss_truth": 3.413885415,
}


def boost(v, x, t):
    v2 = (v * v).sum(-1, keepdim=True)
    gamma = 1 / torch.sqrt(1 - v2)
    along = (v * x).sum(-1, keepdim=True)
    return x + (gamma - 1) * along / v2 * v - gamma * v * t  # ORIGIN


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.v = nn.Parameter(torch.tensor([[0.0, 0.0, 0.0], [0.3, -0.2, 0.1]]))

    def forward(self, fixed):
        x = torch.tensor([[1.0, 2.0, -1.0], [0.5, 0.1, 0.7]])
        t = torch.tensor([[0.5], [1.5]])
        if fixed:
            v = self.v
            v2 = (v * v).sum(-1, keepdim=True)
            gamma = 1 / torch.sqrt(1 - v2)
            along = (v * x).sum(-1, keepdim=True)
            y = x + gamma**2 / (gamma + 1) * along * v - gamma * v * t
        else:
            y = boost(self.v, x, t)
        return (y - torch.tensor([0.8, 1.5, -0.5])).pow(2).sum()


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
