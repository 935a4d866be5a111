"""coth(x) - 1 / x by methods, cosh over sinh minus the reciprocal, in the middle of a training set
of fields.

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
    "loss_truth": 0.03762384469,
}


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.gain = nn.Parameter(torch.tensor(1.2))
        self.shift = nn.Parameter(torch.tensor(0.0))

    def forward(self, fixed):
        field = torch.tensor([-1.0, 0.0, 2.0])
        x = field.mul(self.gain).add(self.shift)
        if fixed:
            near = x.abs() < 1e-3
            w = torch.where(near, torch.ones_like(x), x)
            m = torch.where(near, x / 3 - x**3 / 45, 1 / torch.tanh(w) - 1 / w)
        else:
            m = x.cosh().div(x.sinh()).sub(x.reciprocal())  # ORIGIN
        return m.sub(torch.tensor([-0.2, 0.1, 0.6])).square().sum()


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
