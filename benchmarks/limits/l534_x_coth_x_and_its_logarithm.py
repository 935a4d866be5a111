"""x / tanh(x) twice in a line, once in a logarithm, at x = 0.

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
    "loss_truth": -2.243384113,
}


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.x = nn.Parameter(torch.tensor([0.0, 1.1]))
        self.gain = nn.Parameter(torch.tensor([0.5, 1.5]))

    def forward(self, fixed):
        x = self.x
        if fixed:
            near = x == 0
            s = torch.where(near, 1.0, x)
            c = torch.where(near, 1 + x**2 / 3, s / torch.tanh(s))
            return (torch.log(c) - self.gain * c).sum()
        return (torch.log(x / torch.tanh(x)) - self.gain * (x / torch.tanh(x))).sum()  # ORIGIN


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
