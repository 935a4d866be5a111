"""Vasicek zero-coupon yields with a mean reversion that starts at exactly 0 (Merton's model): (1 - exp(-k t)) / k and the convexity / k^2 are 0 / 0; limits t and t^3 / 3."""
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

META = {
    "origin_op": "div",
    "phase": "forward",
    "cause": "div-by-zero",
    "symptom": "loss-nan",
    "first_bad_step": 0,
    "n_steps": 2,
    "kind": "removable",
    "loss_truth": 4.671977778,
    "fix": "series in k t of both loadings near 0",
}

TAU, QUOTES = [0.5, 1.0, 2.0, 5.0], [0.031, 0.034, 0.036, 0.045]


class Vasicek(nn.Module):
    def __init__(self, fixed):
        super().__init__()
        self.short = nn.Parameter(torch.tensor(0.03))
        self.level = nn.Parameter(torch.tensor(0.06))
        self.speed = nn.Parameter(torch.tensor(0.0))
        self.vol = nn.Parameter(torch.tensor(0.08))
        self.fixed = fixed

    def loadings(self, tau):
        if not self.fixed:
            duration = (1 - torch.exp(-self.speed * tau)) / self.speed  # ORIGIN
            convexity = (tau - duration) / self.speed**2 - duration**2 / (2 * self.speed)
            return duration, convexity
        x = self.speed * tau
        near = x.abs() < 5e-2
        far = torch.where(near, torch.ones_like(x), x)
        first = torch.where(near, 1 - x / 2 + x**2 / 6 - x**3 / 24, -torch.expm1(-far) / far)
        second = (1 + torch.expm1(-far) / far) / far**2 - (torch.expm1(-far) / far) ** 2 / (2 * far)
        second = torch.where(near, 1 / 3 - x / 4 + 7 * x**2 / 60 - x**3 / 24, second)
        return tau * first, tau**3 * second

    def log_price(self, tau):
        duration, convexity = self.loadings(tau)
        drift = self.level * (tau - duration) + self.short * duration
        return 0.5 * self.vol**2 * convexity - drift

    def forward(self, tau):
        return -checkpoint(self.log_price, tau, use_reentrant=False) / tau


def build(fixed: bool = False):
    net = Vasicek(fixed)
    opt = torch.optim.SGD(net.parameters(), lr=1e-3)
    tau, quotes = torch.tensor(TAU), torch.tensor(QUOTES)

    def step(i):
        opt.zero_grad()
        loss = (100 * (net(tau) - quotes)).pow(2).mean()
        loss.backward()
        opt.step()
        return loss

    return net, step


def reference():
    t, q = torch.tensor(TAU, dtype=torch.float64), torch.tensor(QUOTES, dtype=torch.float64)
    r, th, v = 0.03, 0.06, 0.08
    gap = (r - v * v * t**2 / 6) - q
    left = 2e4 * gap / len(t)
    # yield = level + (short - level) (1 - k t / 2) - vol^2 / 2 (t^2 / 3 - k t^3 / 4) + O(k^2)
    return 1e4 * (gap**2).mean().item(), {
        "short": left.sum(),
        "level": torch.zeros((), dtype=torch.float64),
        "speed": (left * (-(r - th) * t / 2 + v * v * t**3 / 8)).sum(),
        "vol": (left * -v * t**2 / 3).sum(),
    }


def truth():
    return reference()[1]
