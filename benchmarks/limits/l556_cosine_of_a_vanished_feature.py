"""Length of a difference of features by matmul of rows, one of which is 0.

Source: well-known fault
"""
import math

import torch
from torch import nn

META = {
    "origin_op": "sqrt",
    "phase": "backward",
    "cause": "sqrt-at-zero",
    "symptom": "grad-nan",
    "first_bad_step": 0,
    "n_steps": 2,
    "kind": "no-limit",
    "loss_truth": 1.562049935,
    "bound": 1.0,
}


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.f = nn.Parameter(torch.tensor([[0.4, 0.3], [1.0, -1.0]]))

    def forward(self, fixed):
        anchor = torch.tensor([[0.4, 0.3], [0.0, 0.2]])
        d = self.f - anchor
        if fixed:
            return torch.linalg.vector_norm(d, dim=-1).sum()
        square = torch.matmul(d.unsqueeze(1), d.unsqueeze(2)).flatten()
        return torch.sqrt(square).sum()  # ORIGIN


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
    true["f"][0] = math.nan
    return true
