"""Mean square radius (b^5 - a^5) / (b^3 - a^3) of a shell that has become thin.

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
    "loss_truth": 1.355372451,
}


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.a = nn.Parameter(torch.tensor([1.0, 0.5]))
        self.b = nn.Parameter(torch.tensor([1.0, 1.5]))

    def forward(self, fixed):
        a, b = self.a, self.b
        if fixed:
            top = b**4 + b**3 * a + b**2 * a**2 + b * a**3 + a**4
            return (top / (b**2 + a * b + a**2)).log().sum()
        return ((b**5 - a**5) / (b**3 - a**3)).log().sum()  # ORIGIN


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
