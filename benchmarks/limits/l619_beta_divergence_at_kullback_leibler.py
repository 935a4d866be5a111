"""Beta divergence of a factorisation at beta = 1: y^b / (b (b - 1)) + m^b / b - y m^(b - 1) / (b -
1).

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
    "loss_truth": 0.4045431556,
}


class Factorisation(nn.Module):
    def __init__(self):
        super().__init__()
        self.w = nn.Parameter(torch.tensor([[0.6, 1.2], [1.5, 0.4]]))
        self.beta = 1.0

    def divergence(self, y, m):
        b = torch.tensor(self.beta)
        return y**b / (b * (b - 1)) + m**b / b - y * m ** (b - 1) / (b - 1)  # ORIGIN


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.model = Factorisation()

    def forward(self, fixed):
        y = torch.tensor([[1.0, 2.0], [0.7, 0.9]])
        m = self.model.w @ torch.tensor([[1.0, 0.5], [0.2, 1.1]])
        if fixed:
            return (y * torch.log(y / m) - y + m).sum()
        return self.model.divergence(y, m).sum()


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
