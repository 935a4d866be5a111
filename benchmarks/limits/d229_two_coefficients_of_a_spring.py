"""sin(w t) / w on one line and (1 - cos(w t)) / w^2 on the next, of a spring that has no stiffness.

Source: well-known fault
"""

import torch
from torch import nn

META = {
    "origins": 2,
    "origin_op": "div",
    "phase": "forward",
    "cause": "div-by-zero",
    "symptom": "loss-nan",
    "first_bad_step": 0,
    "n_steps": 2,
    "kind": "two",
    "loss_truth": 3.423125134,
}


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.w = nn.Parameter(torch.tensor([0.0, 1.5]))
        self.v = nn.Parameter(torch.tensor([1.0, -0.5]))
        self.force = nn.Parameter(torch.tensor([0.4, 0.7]))

    def forward(self, fixed):
        w, t = self.w, 2.0
        if fixed:
            near = w.abs() < 1e-2
            s = torch.where(near, torch.ones_like(w), w)
            a = torch.where(near, t - t**3 * w**2 / 6, torch.sin(s * t) / s)
            b = torch.where(near, t**2 / 2 - t**4 * w**2 / 24, (1 - torch.cos(s * t)) / s**2)
        else:
            a = torch.sin(w * t) / w  # ORIGIN
            b = (1 - torch.cos(w * t)) / w**2  # ORIGIN
        return (self.v * a + self.force * b - 1.0).square().sum()


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
