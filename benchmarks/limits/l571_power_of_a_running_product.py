"""Leave-one-out product prod(x) / x with one factor of 0.

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
    "loss_truth": 3,
}


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.x = nn.Parameter(torch.tensor([2.0, 0.0, 3.0]))

    def forward(self, fixed):
        if fixed:
            x = self.x
            rest = torch.stack([x[1] * x[2], x[0] * x[2], x[0] * x[1]])
        else:
            rest = self.x.prod() / self.x  # ORIGIN
        return (rest * torch.tensor([1.0, 0.5, 2.0])).sum()


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
