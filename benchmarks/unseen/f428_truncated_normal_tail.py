"""A truncated normal by hand: far in the tail both cumulative values are one, and their difference is zero."""
import torch
from torch import nn

META = {
    "origin_op": "log", "phase": "forward", "cause": "log-of-zero", "symptom": "loss-inf",
    "first_bad_step": 3, "n_steps": 5, "fix": "a floor under the mass of the interval",
}

phi = lambda z: 0.5 * (1 + torch.erf(z / 2**0.5))  # noqa: E731


def truncated_nll(y, mu, sigma, low, high, floor):
    z = (y - mu) / sigma
    mass = phi((high - mu) / sigma) - phi((low - mu) / sigma)
    if floor:
        mass = mass.clamp_min(floor)
    return (0.5 * z**2 + torch.log(sigma) + torch.log(mass)).mean()  # ORIGIN


class Tobit(nn.Module):
    def __init__(self):
        super().__init__()
        self.mean = nn.Linear(4, 1)
        self.log_sigma = nn.Parameter(torch.zeros(1))

    def forward(self, x):
        return self.mean(x).squeeze(-1), self.log_sigma.exp()


def build(fixed=False):
    torch.manual_seed(57)
    net = Tobit()
    opt = torch.optim.Adam(net.parameters(), lr=1e-2)
    gen = torch.Generator().manual_seed(58)

    def step(i):
        x = torch.randn(16, 4, generator=gen)
        y = torch.rand(16, generator=gen)
        low, high = torch.zeros(16), torch.ones(16)
        if i == 3:
            low[2], high[2] = 30.0, 31.0
            y[2] = 30.5  # a price in another currency
        mu, sigma = net(x)
        loss = truncated_nll(y, mu, sigma, low, high, 1e-6 if fixed else 0.0)
        opt.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(net.parameters(), 10.0)
        opt.step()
        return loss

    return net, step
