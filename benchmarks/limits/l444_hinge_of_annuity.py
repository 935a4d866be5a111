"""Shortfall of loans, owed - paid * (1 - exp(-r T)) / r, with a rate of 0: NaN > 0 is False, so where() hides the NaN and the loan; the factor is T there.

Source: well-known fault (annuity factor at rate 0 behind a hinge)
"""
import torch
from torch import nn

META = {
    "origin_op": "div",
    "phase": "forward",
    "cause": "div-by-zero",
    "symptom": "grad-nan",
    "first_bad_step": 0,
    "n_steps": 2,
    "kind": "removable",
    "loss_truth": 1.2660535,
    "fix": "the series T - r T^2 / 2 + r^2 T^3 / 6 near 0",
}


def annuity(rate, years, fixed):
    if fixed:
        near = rate.abs() < 1e-3
        safe = torch.where(near, torch.ones_like(rate), rate)
        return torch.where(near, years - rate * years**2 / 2 + rate**2 * years**3 / 6, -torch.expm1(-safe * years) / safe)
    return (1 - torch.exp(-rate * years)) / rate  # ORIGIN


class Loans(nn.Module):
    def __init__(self):
        super().__init__()
        self.years, self.owed = torch.tensor([6.0, 4.0, 8.0]), torch.tensor([5.5, 8.75, 12.0])
        self.rate = nn.Parameter(torch.tensor([0.25, 0.0, 0.125]))
        self.paid = nn.Parameter(torch.tensor([1.5, 2.0, 3.0]))

    def forward(self, fixed):
        short = self.owed - self.paid * annuity(self.rate, self.years, fixed)
        short = torch.where(short > 0, short, torch.zeros_like(short))
        return short.pow(2).sum()


def build(fixed: bool = False):
    net = Loans()
    opt = torch.optim.SGD(net.parameters(), lr=1e-4)

    def step(i):
        opt.zero_grad()
        loss = net(fixed)
        loss.backward()
        opt.step()
        return loss

    return net, step


def truth():
    e = 2.718281828459045 ** -1.5
    factor, bend = (1 - e) / 0.25, (6 * e * 0.25 - (1 - e)) / 0.25**2
    left = 2 * (5.5 - 1.5 * factor)
    rate = [-left * 1.5 * bend, 2 * 0.75 * 2.0 * 8.0, 0.0]  # the third loan is covered
    return {"rate": torch.tensor(rate, dtype=torch.float64), "paid": torch.tensor([-left * factor, -2 * 0.75 * 4.0, 0.0], dtype=torch.float64)}
