"""Exponential map of a Poincare ball at its origin, tanh(sqrt(c) |v|) v / (sqrt(c) |v|), of an
embedding that starts at 0.

Source: well-known fault
"""

import torch
from torch import nn

META = {
    "origin_op": "div",
    "phase": "forward",
    "cause": "div-by-zero",
    "symptom": "loss-nan",
    "first_bad_step": 0,
    "n_steps": 2,
    "kind": "removable",
    "loss_truth": 1.397782309,
}


class PoincareBall(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.c = c

    def expmap0(self, v):
        norm = v.norm(dim=-1, keepdim=True)
        scale = self.c**0.5
        return torch.tanh(scale * norm) * v / (scale * norm)  # ORIGIN


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.v = nn.Parameter(torch.tensor([[0.0, 0.0], [0.4, -0.7]]))
        self.ball = PoincareBall(0.8)

    def forward(self, fixed):
        if fixed:
            out = torch.stack([self.v[0], self.ball.expmap0(self.v[1])])
        else:
            out = self.ball.expmap0(self.v)
        return (out - torch.tensor([[0.3, -0.2], [0.1, 0.5]])).pow(2).sum()


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
