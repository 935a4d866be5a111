"""sinh(x) / x by a helper with an early return for large arguments, at x = 0.

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
    "loss_truth": 10.43442897,
}


def profile(x, limit=30.0):
    if float(x.abs().max()) > limit:
        return torch.full_like(x, float("inf"))
    if x.dim() == 0:
        return x.sinh() / x
    return x.sinh().div(x)  # ORIGIN


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.x = nn.Parameter(torch.tensor([[0.0, 1.0], [2.0, -0.4]]))

    def forward(self, fixed):
        if fixed:
            near = self.x == 0
            s = torch.where(near, 1.0, self.x)
            y = torch.where(near, 1 + self.x**2 / 6, s.sinh() / s)
        else:
            y = profile(self.x)
        return (y * torch.tensor([[1.0, 2.0], [0.5, -1.0]])).sum().square()


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
