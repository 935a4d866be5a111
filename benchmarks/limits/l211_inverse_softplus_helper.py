"""Inverse softplus in a helper that is called twice.

Source: well-known fault (positive parameters)
"""
import torch
from torch import nn

META = {
    "origin_op": "exp",
    "phase": "forward",
    "cause": "exp-overflow",
    "symptom": "loss-inf",
    "first_bad_step": 0,
    "n_steps": 2,
    "kind": "overflow",
    "loss_truth": 96.35345489,
}


def inverse(t):
    return torch.log(torch.exp(t) - 1)  # ORIGIN


class Positive(nn.Module):
    def __init__(self):
        super().__init__()
        self.a = nn.Parameter(torch.tensor([100.0, 0.5]))
        self.b = nn.Parameter(torch.tensor([2.0, 1.5]))

    def forward(self, fixed):
        if fixed:
            z = self.a + torch.log(-torch.expm1(-self.a)) - self.b - torch.log(-torch.expm1(-self.b))
        else:
            z = inverse(self.a) - inverse(self.b)
        loss = (z / 10).pow(2).sum()
        return loss


def build(fixed: bool = False):
    net = Positive()
    opt = torch.optim.SGD(net.parameters(), lr=1e-3)

    def step(i):
        opt.zero_grad()
        loss = net(fixed)
        loss.backward()
        opt.step()
        return loss

    return net, step


def truth():
    a = torch.tensor([100.0, 0.5], dtype=torch.float64, requires_grad=True)
    b = torch.tensor([2.0, 1.5], dtype=torch.float64, requires_grad=True)
    z = a + torch.log(-torch.expm1(-a)) - b - torch.log(-torch.expm1(-b))
    loss = (z / 10).pow(2).sum()
    found = torch.autograd.grad(loss, [a, b], allow_unused=True)
    true = {name: torch.zeros_like(p) if g is None else g for name, p, g in zip(["a", "b"], [a, b], found)}
    return true
