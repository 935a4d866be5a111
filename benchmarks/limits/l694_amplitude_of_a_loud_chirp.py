"""Magnitude sqrt(re^2 + im^2) of a spectrum in half precision under autocast, whose squares
overflow.

Source: well-known fault
"""

import torch
from torch import nn

META = {
    "origin_op": "sqrt",
    "phase": "forward",
    "cause": "sqrt-at-zero",
    "symptom": "loss-inf",
    "first_bad_step": 0,
    "n_steps": 2,
    "kind": "overflow",
    "loss_truth": 9.94100946,
}


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.real = nn.Linear(2, 2, bias=False)
        self.imag = nn.Linear(2, 2, bias=False)
        with torch.no_grad():
            self.real.weight.copy_(torch.tensor([[200.0, 120.0], [0.5, -1.0]]))
            self.imag.weight.copy_(torch.tensor([[-150.0, 90.0], [0.3, 0.7]]))

    def forward(self, fixed):
        x = torch.tensor([[1.5, 1.0], [0.2, 0.4]])
        if fixed:
            a, b = self.real(x), self.imag(x)
            return torch.log(torch.hypot(a, b)).sum()
        with torch.autocast("cpu", dtype=torch.float16):
            a, b = self.real(x), self.imag(x)
            magnitude = torch.sqrt(a**2 + b**2)  # ORIGIN
        return torch.log(magnitude.float()).sum()


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
