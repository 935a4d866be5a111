"""(a log a - b log b) / (a - b) with equal a and b: log a + 1.

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
    "loss_truth": 2.517106397,
}


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.a = nn.Parameter(torch.tensor([2.0, 1.0]))
        self.b = nn.Parameter(torch.tensor([2.0, 3.0]))

    @staticmethod
    def xlogx(x):
        return x * x.log()

    def forward(self, fixed):
        if fixed:
            a, b = self.a, self.b
            m = (a[0] + b[0]) / 2
            y = torch.stack([m.log() + 1, (a[1] * a[1].log() - b[1] * b[1].log()) / (a[1] - b[1])])
        else:
            y = (self.xlogx(self.a) - self.xlogx(self.b)) / (self.a - self.b)  # ORIGIN
        return (y * torch.tensor([1.0, 0.5])).sum()


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
