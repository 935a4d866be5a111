"""sin(|v|) v / |v|, the exponential map of a sphere, by einsum and rsqrt, v = 0 for one.

Source: well-known fault
"""
import math

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
    "loss_truth": 0.4594072236,
}


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.v = nn.Parameter(torch.tensor([[0.0, 0.0], [0.8, -0.4]]))

    def forward(self, fixed):
        if fixed:
            n = torch.linalg.vector_norm(self.v, dim=1, keepdim=True)
            y = torch.sinc(n / math.pi) * self.v
        else:
            square = torch.einsum("nd,nd->n", self.v, self.v)[:, None]
            y = torch.sin(square.sqrt()) * square.rsqrt() * self.v  # ORIGIN
        return (y - torch.tensor([0.3, 0.1])).pow(2).sum()


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
