"""Logarithm of a scale of 0 whose weight is 0.

Source: well-known fault (masked likelihoods)
"""
import torch
from torch import nn

META = {
    "origin_op": "log",
    "phase": "forward",
    "cause": "log-of-zero",
    "symptom": "loss-nan",
    "first_bad_step": 0,
    "n_steps": 2,
    "kind": "masked",
    "loss_truth": -0.3465735903,
}


class Scale(nn.Module):
    def __init__(self):
        super().__init__()
        self.s = nn.Parameter(torch.tensor([0.0, 0.5, 2.0]))

    def forward(self, fixed):
        weight = torch.tensor([0.0, 1.0, 0.5])
        if fixed:
            terms = weight * torch.log(torch.where(weight > 0, self.s, torch.ones_like(self.s)))
        else:
            terms = weight * torch.log(self.s)  # ORIGIN
        loss = terms.sum()
        return loss


def build(fixed: bool = False):
    net = Scale()
    opt = torch.optim.SGD(net.parameters(), lr=1e-3)

    def step(i):
        opt.zero_grad()
        loss = net(fixed)
        loss.backward()
        opt.step()
        return loss

    return net, step


def truth():
    s = torch.tensor([0.0, 0.5, 2.0], dtype=torch.float64, requires_grad=True)
    weight = torch.tensor([0.0, 1.0, 0.5])
    terms = weight * torch.log(torch.where(weight > 0, s, torch.ones_like(s)))
    loss = terms.sum()
    found = torch.autograd.grad(loss, [s], allow_unused=True)
    true = {name: torch.zeros_like(p) if g is None else g for name, p, g in zip(["s"], [s], found)}
    return true
