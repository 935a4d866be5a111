"""coth x - 1/x on one line, x / log(1 + x) on the next; both at 0.

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
    "loss_truth": 0.0916104053,
}


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.x = nn.Parameter(torch.tensor([0.0, 1.1]))
        self.y = nn.Parameter(torch.tensor([0.4, 0.0]))

    def forward(self, fixed):
        x, y = self.x, self.y
        if fixed:
            nx, ny = x == 0, y == 0
            s, u = torch.where(nx, torch.ones_like(x), x), torch.where(ny, torch.ones_like(y), y)
            m = torch.where(nx, x / 3, 1 / torch.tanh(s) - 1 / s)
            k = torch.where(ny, 1 + y / 2, u / torch.log1p(u))
        else:
            m = 1 / torch.tanh(x) - 1 / x  # ORIGIN
            k = y / torch.log(1 + y)  # ORIGIN
        return (m * k - 0.3).square().sum()


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
