"""x / log1p(x) with x = 0, in place and by a list.

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
    "loss_truth": 6.891682846,
}


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.x = nn.Parameter(torch.tensor([0.0, 0.5, -0.3]))
        self.w = nn.Parameter(torch.tensor([1.0, 2.0, -1.0]))

    def forward(self, fixed):
        x = self.x
        if fixed:
            near = x.abs() < 1e-3
            s = torch.where(near, torch.ones_like(x), x)
            out = torch.where(near, 1 + x / 2 - x**2 / 12, s / torch.log1p(s))
        else:
            out = x.clone()
            out /= torch.log1p(x)  # ORIGIN
        return sum([w * o for w, o in zip(self.w, out)]).square()


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
