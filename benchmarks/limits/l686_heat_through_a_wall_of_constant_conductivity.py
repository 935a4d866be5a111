"""Heat flux (exp(b T1) - exp(b T2)) / b through a wall whose conductivity does not change with
temperature yet, b = 0.

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
    "loss_truth": 0.0884,
}


class Wall(nn.Module):
    def __init__(self):
        super().__init__()
        self.b = nn.Parameter(torch.zeros(1))
        self.k = nn.Parameter(torch.tensor([1.4]))

    def forward(self, hot, cold):
        return self.k * (torch.exp(self.b * hot) - torch.exp(self.b * cold)) / self.b  # ORIGIN


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.wall = Wall()

    def forward(self, fixed):
        hot, cold = torch.tensor([1.0, 0.8]), torch.tensor([0.2, 0.3])
        if fixed:
            flux = self.wall.k * ((hot - cold) + self.wall.b * (hot**2 - cold**2) / 2)
        else:
            flux = self.wall(hot, cold)
        return (flux - torch.tensor([0.9, 0.5])).pow(2).sum()


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
