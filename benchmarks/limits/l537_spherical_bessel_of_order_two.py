"""j2(x) = (3 / x^2 - 1) sin(x) / x - 3 cos(x) / x^2 at x = 0, where it is 0.

Source: well-known fault
"""
import torch
from torch import nn

META = {
    "origin_op": "div",
    "phase": "forward",
    "cause": "zero-divisor",
    "symptom": "loss-nan",
    "first_bad_step": 0,
    "n_steps": 2,
    "kind": "removable",
    "loss_truth": 0.03889859015,
}


def j2(x):
    return (3 / x**2 - 1) * torch.sin(x) / x - 3 * torch.cos(x) / x**2  # ORIGIN


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.k = nn.Parameter(torch.tensor([1.0, 2.0]))
        self.register_buffer("r", torch.tensor([0.0, 1.3]))

    def forward(self, fixed):
        x = self.k * self.r
        if fixed:
            y = torch.stack([x[0] ** 2 / 15, j2(x[1])])
        else:
            y = j2(x)
        return (y - 0.1).pow(2).sum()


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
