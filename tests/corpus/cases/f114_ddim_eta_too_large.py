"""DDIM sampling inside a distillation loss: with eta above one the direction coefficient sqrt(1 - abar - sigma^2) is the root of a negative."""

import torch
from torch import nn

META = {
    "origin_op": "sqrt",
    "phase": "forward",
    "cause": "sqrt-of-negative",
    "symptom": "loss-nan",
    "first_bad_step": 2,
    "n_steps": 5,
    "fix": "keep eta at or below one",
}


class Eps(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(9, 32), nn.SiLU(), nn.Linear(32, 8))

    def forward(self, x, t):
        return self.net(torch.cat([x, t[:, None] / 50], -1))


def ddim_step(model, x, t, s, abar, eta):
    eps = model(x, t.float())
    a, b = abar[t][:, None], abar[s][:, None]
    x0 = (x - (1 - a).sqrt() * eps) / a.sqrt()
    sigma = eta * torch.sqrt((1 - b) / (1 - a) * (1 - a / b))
    direction = torch.sqrt(1 - b - sigma**2)  # ORIGIN
    return b.sqrt() * x0 + direction * eps


def build(fixed: bool = False):
    torch.manual_seed(208)
    net = Eps()
    opt = torch.optim.Adam(net.parameters(), lr=1e-3)
    gen = torch.Generator().manual_seed(708)
    abar = torch.cumprod(1 - torch.linspace(1e-3, 0.2, 50), 0)

    def step(i):
        opt.zero_grad()
        x = torch.randn(8, 8, generator=gen)
        t = torch.randint(20, 50, (8,), generator=gen)
        eta = 1.0 if fixed or i < 2 else 3.0
        loss = (ddim_step(net, x, t, t - 10, abar, eta) - 0.3 * x).square().mean()
        loss.backward()
        opt.step()
        return loss

    return net, step
