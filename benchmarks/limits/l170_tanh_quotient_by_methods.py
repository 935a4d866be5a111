"""x / tanh x written with methods: gains start at 0.

Source: well-known fault (effective mass of a screened field)
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
    "loss_truth": 1.373844439,
}


def near_zero(t, series, quotient):
    near = t.abs() < 2e-2
    safe = torch.where(near, torch.ones_like(t), t)
    return torch.where(near, series(t), quotient(safe))


class Screen(nn.Module):
    def __init__(self):
        super().__init__()
        self.x = nn.Parameter(torch.tensor([0.0, 0.5, -1.5]))

    def forward(self, fixed):
        if fixed:
            gain = near_zero(self.x, lambda t: 1 + t**2 / 3 - t**4 / 45, lambda t: t / torch.tanh(t))
        else:
            gain = self.x.div(self.x.tanh())  # ORIGIN
        loss = (gain * torch.exp(self.x) - 0.7).pow(2).sum()
        return loss


def build(fixed: bool = False):
    net = Screen()
    opt = torch.optim.SGD(net.parameters(), lr=1e-3)

    def step(i):
        opt.zero_grad()
        loss = net(fixed)
        loss.backward()
        opt.step()
        return loss

    return net, step


def truth():
    x = torch.tensor([0.0, 0.5, -1.5], dtype=torch.float64, requires_grad=True)
    gain = near_zero(x, lambda t: 1 + t**2 / 3 - t**4 / 45, lambda t: t / torch.tanh(t))
    loss = (gain * torch.exp(x) - 0.7).pow(2).sum()
    found = torch.autograd.grad(loss, [x], allow_unused=True)
    true = {name: torch.zeros_like(p) if g is None else g for name, p, g in zip(["x"], [x], found)}
    return true
