"""Height (1 - cos a) / sin a of a drop of contact angle a = 0, and its volume factor on the next
line.

Source: well-known fault
"""

import torch
from torch import nn

META = {
    "origin_op": "div",
    "phase": "backward",
    "cause": "div-by-zero",
    "symptom": "grad-nan",
    "first_bad_step": 0,
    "n_steps": 2,
    "kind": "removable",
    "loss_truth": 0.04597067479,
}


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.a = nn.Parameter(torch.tensor([0.0, 0.7, 1.9]))

    def forward(self, fixed):
        a = self.a
        if fixed:
            height = torch.tan(a / 2)
        else:
            height = (1 - torch.cos(a)) / torch.sin(a)  # ORIGIN
        volume = height * (3 + height**2) / 6
        return (volume - torch.tensor([0.1, 0.3, 1.0])).pow(2).sum()


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
