"""The error estimate is zero at first, its negative power infinite, clamped and never differentiated."""

import torch
from torch import nn
from torch.nn import functional as F

META = {
    "healthy": True,
    "n_steps": 5,
    "why": "the error estimate is zero at first, its negative power infinite, clamped and never differentiated",
}


class Ode(nn.Module):
    def __init__(self):
        super().__init__()
        self.f = nn.Sequential(nn.Linear(2, 16), nn.Tanh(), nn.Linear(16, 2))

    def forward(self, x):
        t, h, err = 0.0, torch.tensor(0.2), torch.tensor(0.0)
        while t < 0.999:
            with torch.no_grad():
                h = (h * err.pow(-0.2).clamp(0.5, 2.0)).clamp(max=float(1 - t))
            k = self.f(x)
            new = x + h * k
            err = (0.5 * h * (self.f(new) - k)).detach().abs().max() * 10
            x, t = new, t + float(h)
        return x


def build(fixed: bool = False):
    torch.manual_seed(401)
    net = Ode()
    opt = torch.optim.Adam(net.parameters(), lr=1e-3)
    gen = torch.Generator().manual_seed(901)

    def step(i):
        opt.zero_grad()
        x = torch.randn(6, 2, generator=gen)
        loss = F.mse_loss(net(x), x.flip(1))
        loss.backward()
        opt.step()
        return loss

    return net, step
