"""exp(-d^2 / (2 s^2)) with a width of 0 at a distance: 0 and flat.

Source: well-known fault
"""
import torch
from torch import nn

META = {
    "origin_op": "div",
    "phase": "backward",
    "cause": "zero-divisor",
    "symptom": "grad-nan",
    "first_bad_step": 0,
    "n_steps": 2,
    "kind": "removable",
    "loss_truth": 0.02566566921,
}


class Kernel(nn.Module):
    def __init__(self, widths):
        super().__init__()
        self.s = nn.Parameter(torch.tensor(widths))

    def forward(self, d):
        return torch.exp(-(d**2) / (2 * self.s**2))  # ORIGIN


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.kernel = Kernel([0.0, 0.7])
        self.d = nn.Parameter(torch.tensor([1.0, 0.5]))

    def forward(self, fixed):
        if fixed:
            s, d = self.kernel.s[1], self.d[1]
            y = torch.stack([0 * self.d[0], torch.exp(-(d**2) / (2 * s**2))])
        else:
            y = self.kernel(self.d)
        return (y - torch.tensor([0.1, 0.9])).square().sum()


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
