"""Log-ratio of growth (y2 / y1 - 1) / log(y2 / y1) of a series that stands still.

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
    "loss_truth": 0.04696443539,
}


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.y = nn.Parameter(torch.tensor([1.0, 1.5, 1.5, 2.4]))

    def forward(self, fixed):
        r = self.y[1:] / self.y[:-1]
        if fixed:
            d = r - 1
            near = d.abs() < 1e-3
            u = torch.where(near, torch.full_like(r, 2.0), r)
            m = torch.where(near, 1 + d / 2 - d**2 / 12, (u - 1) / torch.log(u))
        else:
            m = (r - 1) / torch.log(r)  # ORIGIN
        return (m - 1.2).pow(2).sum()


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
