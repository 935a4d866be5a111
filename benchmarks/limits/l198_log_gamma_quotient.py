"""lgamma(1 + x) / x at 0.

Source: well-known fault (continued binomial weights)
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
    "loss_truth": 1.064968503,
}


def near_zero(t, series, quotient):
    near = t.abs() < 2e-2
    safe = torch.where(near, torch.ones_like(t), t)
    return torch.where(near, series(t), quotient(safe))


class Weights(nn.Module):
    def __init__(self):
        super().__init__()
        self.x = nn.Parameter(torch.tensor([0.0, 0.5, 2.0]))

    def forward(self, fixed):
        if fixed:
            slope = near_zero(
                self.x,
                lambda t: -0.5772156649015329 + 0.8224670334241132 * t - 0.4006856343865314 * t**2 + 0.2705808084277845 * t**3,
                lambda t: torch.lgamma(1 + t) / t,
            )
        else:
            slope = torch.lgamma(1 + self.x) / self.x  # ORIGIN
        loss = (slope - 0.3).pow(2).sum()
        return loss


def build(fixed: bool = False):
    net = Weights()
    opt = torch.optim.SGD(net.parameters(), lr=1e-3)

    def step(i):
        opt.zero_grad()
        loss = net(fixed)
        loss.backward()
        opt.step()
        return loss

    return net, step


def truth():
    x = torch.tensor([0.0, 0.5, 2.0], dtype=torch.float64, requires_grad=True)
    slope = near_zero(
        x,
        lambda t: -0.5772156649015329 + 0.8224670334241132 * t - 0.4006856343865314 * t**2 + 0.2705808084277845 * t**3,
        lambda t: torch.lgamma(1 + t) / t,
    )
    loss = (slope - 0.3).pow(2).sum()
    found = torch.autograd.grad(loss, [x], allow_unused=True)
    true = {name: torch.zeros_like(p) if g is None else g for name, p, g in zip(["x"], [x], found)}
    return true
