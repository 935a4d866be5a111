"""SABR smile (beta = 1): at the money the moneyness z is 0 and z / x(z) is 0 / 0.

Source: well-known fault (Hagan's formula at the forward)
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
    "loss_truth": 0.3886161078,
    "fix": "1 - rho z / 2 + (2 - 3 rho^2) z^2 / 12 near z = 0",
}


def sabr_vol(F, K, T, alpha, rho, nu, fixed=False):
    z = nu / alpha * torch.log(F / K)
    x = torch.log((torch.sqrt(1 - 2 * rho * z + z * z) + z - rho) / (1 - rho))
    if fixed:
        near = z.abs() < 1e-3
        ratio = torch.where(near, 1 - rho * z / 2 + (2 - 3 * rho**2) * z**2 / 12, z / torch.where(near, torch.ones_like(x), x))
    else:
        ratio = z / x  # ORIGIN
    return alpha * ratio * (1 + (rho * nu * alpha / 4 + (2 - 3 * rho**2) * nu**2 / 24) * T)


class Smile(nn.Module):
    def __init__(self):
        super().__init__()
        self.raw = nn.ParameterDict(
            {
                "log_alpha": nn.Parameter(torch.tensor(-1.4)),
                "atanh_rho": nn.Parameter(torch.tensor(-0.5)),
                "log_nu": nn.Parameter(torch.tensor(-0.3)),
                "fwd": nn.Parameter(torch.tensor(100.0)),
            }
        )

    def forward(self, K, T, fixed):
        r = self.raw
        return sabr_vol(r["fwd"], K, T, r["log_alpha"].exp(), r["atanh_rho"].tanh(), r["log_nu"].exp(), fixed)


def build(fixed: bool = False):
    smile = Smile()
    opt = torch.optim.Adam(smile.parameters(), lr=1e-3)
    K, quoted = torch.tensor([80.0, 100.0, 125.0]), torch.tensor([0.31, 0.24, 0.20])

    def step(i):
        opt.zero_grad()
        loss = 1e3 * (smile(K, 2.0, fixed) - quoted).square().mean()
        loss.backward()
        opt.step()
        return loss

    return smile, step


def truth():
    # at the money the ratio is replaced by its first-order series, exact in value and gradient there
    f8 = torch.float64
    p = torch.tensor([-1.4, -0.5, -0.3, 100.0], dtype=f8, requires_grad=True)
    a, rho, nu, F = p[0].exp(), p[1].tanh(), p[2].exp(), p[3]
    z = nu / a * torch.log(F / torch.tensor([80.0, 100.0, 125.0], dtype=f8))
    x = torch.log((torch.sqrt(1 - 2 * rho * z + z * z) + z - rho) / (1 - rho))
    ratio = torch.stack([z[0] / x[0], 1 - rho * z[1] / 2, z[2] / x[2]])
    vol = a * ratio * (1 + (rho * nu * a / 4 + (2 - 3 * rho**2) * nu**2 / 24) * 2.0)
    g = torch.autograd.grad(1e3 * (vol - torch.tensor([0.31, 0.24, 0.20], dtype=f8)).pow(2).mean(), p)[0]
    return {"raw." + n: g[i] for i, n in enumerate(["log_alpha", "atanh_rho", "log_nu", "fwd"])}
