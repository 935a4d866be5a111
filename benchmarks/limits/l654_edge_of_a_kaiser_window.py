"""Kaiser window i0(b sqrt(1 - x^2)) / i0(b) at its edge x = 1: the infinite slope of the root
meets i1(0) = 0.

Source: well-known fault
"""

import torch
from torch import nn

META = {
    "origin_op": "sqrt",
    "phase": "backward",
    "cause": "sqrt-at-zero",
    "symptom": "grad-nan",
    "first_bad_step": 0,
    "n_steps": 2,
    "kind": "removable",
    "loss_truth": 0.01249901609,
}


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.x = nn.Parameter(torch.tensor([-0.5, 0.2, 1.0]))
        self.b = nn.Parameter(torch.tensor(3.0))

    def forward(self, fixed):
        u = 1 - self.x**2
        if fixed:
            near = u.abs() < 1e-6
            root = torch.where(near, torch.ones_like(u), u).sqrt()
            v = self.b**2 * u / 4
            w = torch.where(near, 1 + v + v**2 / 4, torch.i0(self.b * root)) / torch.i0(self.b)
        else:
            w = torch.i0(self.b * torch.sqrt(u)) / torch.i0(self.b)  # ORIGIN
        return (w - torch.tensor([0.7, 0.9, 0.3])).pow(2).sum()


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
