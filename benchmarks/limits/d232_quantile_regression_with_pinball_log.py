"""Log-normal likelihood of targets with log(y - shift), a target equal to the shift has weight 0.

Source: well-known fault
"""

import torch
from torch import nn

META = {
    "origins": 2,
    "origin_op": "log",
    "phase": "forward",
    "cause": "log-of-zero",
    "symptom": "loss-nan",
    "first_bad_step": 0,
    "n_steps": 2,
    "kind": "two",
    "loss_truth": 0.7958989417,
}


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.mu = nn.Parameter(torch.tensor([0.1, 0.4, -0.3]))
        self.shift = nn.Parameter(torch.tensor(1.0))

    def forward(self, fixed):
        y = torch.tensor([1.0, 2.5, 3.0]).to(self.mu)
        w = (y > 1.0).to(y)
        if fixed:
            d = torch.where(w > 0, y - self.shift, torch.ones_like(y))
        else:
            d = y - self.shift
        z = torch.log(d) - self.mu  # ORIGIN
        return (w * (0.5 * z**2 + torch.log(d))).sum() / w.sum()  # ORIGIN


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
