"""x / tanh(x) chosen by a conditional expression on the same line.

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
    "loss_truth": 3.331997871,
}


class Net(nn.Module):
    def __init__(self, smooth=True):
        super().__init__()
        self.smooth = smooth
        self.x = nn.Parameter(torch.tensor([0.0, -0.7, 1.4]))
        self.k = nn.Parameter(torch.tensor(1.0))

    def forward(self, fixed):
        z = self.k * self.x
        if fixed:
            near = z.abs() < 1e-3
            w = torch.where(near, torch.ones_like(z), z)
            y = torch.where(near, 1 + z**2 / 3, w / torch.tanh(w))
        else:
            y = z / torch.tanh(z) if self.smooth else z.abs()  # ORIGIN
        return ((y + self.x) * torch.tensor([1.0, 0.5, 0.2])).sum() ** 2


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
