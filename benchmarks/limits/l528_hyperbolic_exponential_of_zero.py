"""Exponential map of the Poincare ball at the origin, tanh(n) v / n, for v = 0, with a walrus.

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
    "loss_truth": 0.2315326887,
}


def expmap0(v, c):
    if (n := (c**0.5) * v.norm(dim=-1, keepdim=True)).numel() == 0:
        return v
    return torch.tanh(n) * v / n  # ORIGIN


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.v = nn.Parameter(torch.tensor([[0.0, 0.0], [0.5, -1.0]]))

    def forward(self, fixed):
        if fixed:
            n = self.v[1].norm()
            y = torch.stack([self.v[0], torch.tanh(n) * self.v[1] / n])
        else:
            y = expmap0(self.v, c=1.0)
        return (y - torch.tensor([[0.1, 0.2], [0.3, -0.3]])).pow(2).sum()


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
