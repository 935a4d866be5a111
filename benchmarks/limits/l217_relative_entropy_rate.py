"""Jensen gap (x log x - x + 1) / (x - 1)**2 where x is 1.

Source: well-known fault (f-divergences)
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
    "loss_truth": 0.3141436256,
}


def near_zero(t, series, quotient):
    near = t.abs() < 2e-2
    safe = torch.where(near, torch.ones_like(t), t)
    return torch.where(near, series(t), quotient(safe))


class Gap(nn.Module):
    def __init__(self):
        super().__init__()
        self.x = nn.Parameter(torch.tensor([1.0, 0.4, 2.5]))

    def forward(self, fixed):
        if fixed:
            gap = near_zero(
                self.x - 1, lambda t: 0.5 - t / 6 + t**2 / 12 - t**3 / 20 + t**4 / 30,
                lambda t: ((1 + t) * torch.log1p(t) - t) / t**2,
            )
        else:
            gap = (self.x * torch.log(self.x) - self.x + 1) / (self.x - 1) ** 2  # ORIGIN
        loss = (gap - 0.2).pow(2).sum()
        return loss


def build(fixed: bool = False):
    net = Gap()
    opt = torch.optim.SGD(net.parameters(), lr=1e-3)

    def step(i):
        opt.zero_grad()
        loss = net(fixed)
        loss.backward()
        opt.step()
        return loss

    return net, step


def truth():
    x = torch.tensor([1.0, 0.4, 2.5], dtype=torch.float64, requires_grad=True)
    gap = near_zero(
        x - 1, lambda t: 0.5 - t / 6 + t**2 / 12 - t**3 / 20 + t**4 / 30,
        lambda t: ((1 + t) * torch.log1p(t) - t) / t**2,
    )
    loss = (gap - 0.2).pow(2).sum()
    found = torch.autograd.grad(loss, [x], allow_unused=True)
    true = {name: torch.zeros_like(p) if g is None else g for name, p, g in zip(["x"], [x], found)}
    return true
