"""Signal divided by a window that is 0 at both ends, which are cut off afterwards.

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
    "kind": "masked",
    "loss_truth": 0.3392684015,
}


def unwindowed(x, window):
    return (x * window.abs().sqrt() / window)[1:-1]  # ORIGIN


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.x = nn.Parameter(torch.tensor([0.5, 0.9, -0.3, 0.4, 0.2]))

    def forward(self, fixed):
        window = torch.tensor([0.0, 0.5, 1.0, 0.5, 0.0])
        y = torch.tensor([0.7, -0.2, 0.6])
        if fixed:
            return (self.x[1:-1] / window[1:-1].sqrt() - y).pow(2).sum()
        return (unwindowed(self.x, window) - y).pow(2).sum()


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
