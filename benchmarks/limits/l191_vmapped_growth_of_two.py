"""expm1(a r) / r over samples by torch.func.vmap, with another parameter in it.

Source: well-known fault (per-sample functions)
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
    "loss_truth": 0.5233483777,
}


def near_zero(t, series, quotient):
    near = t.abs() < 2e-2
    safe = torch.where(near, torch.ones_like(t), t)
    return torch.where(near, series(t), quotient(safe))


class Samples(nn.Module):
    def __init__(self):
        super().__init__()
        self.r = nn.Parameter(torch.tensor([0.0, 0.5, -1.0]))
        self.a = nn.Parameter(torch.tensor(0.8))

    def forward(self, fixed):
        if fixed:
            phi = self.a * near_zero(self.a * self.r, lambda t: 1 + t / 2 + t**2 / 6 + t**3 / 24 + t**4 / 120, lambda t: torch.expm1(t) / t)
        else:
            phi = torch.func.vmap(lambda r, a: torch.expm1(a * r) / r, in_dims=(0, None))(self.r, self.a)  # ORIGIN
        loss = (phi - 0.4).pow(2).sum()
        return loss


def build(fixed: bool = False):
    net = Samples()
    opt = torch.optim.SGD(net.parameters(), lr=1e-3)

    def step(i):
        opt.zero_grad()
        loss = net(fixed)
        loss.backward()
        opt.step()
        return loss

    return net, step


def truth():
    r = torch.tensor([0.0, 0.5, -1.0], dtype=torch.float64, requires_grad=True)
    a = torch.tensor(0.8, dtype=torch.float64, requires_grad=True)
    phi = a * near_zero(a * r, lambda t: 1 + t / 2 + t**2 / 6 + t**3 / 24 + t**4 / 120, lambda t: torch.expm1(t) / t)
    loss = (phi - 0.4).pow(2).sum()
    found = torch.autograd.grad(loss, [r, a], allow_unused=True)
    true = {name: torch.zeros_like(p) if g is None else g for name, p, g in zip(["r", "a"], [r, a], found)}
    return true
