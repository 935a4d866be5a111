"""Zero-coupon yields of the Vasicek model, fitted to two curves; the mean reversion of the first starts at 0 (Merton's model).

Source: well-known fault (affine term-structure coefficients at kappa = 0)
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
    "loss_truth": 4.030125291,
    "fix": "the series of A and B in kappa",
}


class Vasicek(nn.Module):
    def __init__(self):
        super().__init__()
        self.kappa = nn.Parameter(torch.tensor([[0.0], [0.6]]))
        self.theta = nn.Parameter(torch.tensor([[0.05], [0.03]]))
        self.sigma = nn.Parameter(torch.tensor([[0.10], [0.15]]))
        self.r0 = nn.Parameter(torch.tensor([[0.02], [0.01]]))

    def coefficients(self, T, fixed):
        k, th, s2 = self.kappa, self.theta, self.sigma**2
        if fixed:
            near = k.abs() < 1e-3
            safe = torch.where(near, torch.ones_like(k), k)
            B = torch.where(near, T - k * T**2 / 2 + k**2 * T**3 / 6, -torch.expm1(-safe * T) / safe)
            A = (B - T) * (safe**2 * th - s2 / 2) / safe**2 - s2 * B**2 / (4 * safe)
            return torch.where(near, s2 * T**3 / 6 - k * (th * T**2 / 2 + s2 * T**4 / 8), A), B
        B = (1 - torch.exp(-k * T)) / k  # ORIGIN
        A = (B - T) * (k**2 * th - s2 / 2) / k**2 - s2 * B**2 / (4 * k)
        return A, B

    def forward(self, T, fixed):
        A, B = self.coefficients(T, fixed)
        return -(A - B * self.r0) / T


def build(fixed: bool = False):
    model = Vasicek()
    opt = torch.optim.Adam(model.parameters(), lr=1e-4)
    T = torch.tensor([0.5, 2.0, 5.0])
    market = torch.tensor([[0.021, 0.03, 0.02], [0.015, 0.02, 0.025]])

    def step(i):
        opt.zero_grad()
        loss = 1e4 * (model(T, fixed) - market).pow(2).mean()
        loss.backward()
        opt.step()
        return loss

    return model, step


def truth():
    # kappa = 0: A = s2 T^3 / 6 - kappa (theta T^2 / 2 + s2 T^4 / 8), B = T - kappa T^2 / 2
    f8 = torch.float64
    T = torch.tensor([0.5, 2.0, 5.0], dtype=f8)
    market = torch.tensor([[0.021, 0.03, 0.02], [0.015, 0.02, 0.025]], dtype=f8)
    s, th, r = 0.10, 0.05, 0.02
    y = r - s * s * T**2 / 6
    left = 2e4 / 6 * (y - market[0])
    first = [
        (left * (th * T / 2 + s * s * T**3 / 8 - r * T / 2)).sum(),
        torch.zeros((), dtype=f8),
        (left * -s * T**2 / 3).sum(),
        left.sum(),
    ]
    p = torch.tensor([0.6, 0.03, 0.15, 0.01], dtype=f8, requires_grad=True)
    k, th, s, r = p.unbind()
    B = (1 - torch.exp(-k * T)) / k
    A = (th - s**2 / (2 * k**2)) * (B - T) - s**2 * B**2 / (4 * k)
    second = torch.autograd.grad(1e4 / 6 * ((B * r - A) / T - market[1]).pow(2).sum(), p)[0]
    return {n: torch.stack([first[i], second[i]])[:, None] for i, n in enumerate(["kappa", "theta", "sigma", "r0"])}
