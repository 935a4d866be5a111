"""Poisson regression of insurance claims: one policy's mileage was entered in metres and the rate exp(eta) is infinite."""

import torch
from torch import nn

META = {
    "origin_op": "exp",
    "phase": "forward",
    "cause": "exp-overflow",
    "symptom": "loss-inf",
    "first_bad_step": 3,
    "n_steps": 6,
    "fix": "bound the log-rate",
}


class Claims(nn.Module):
    def __init__(self, limit):
        super().__init__()
        self.limit = limit
        self.region = nn.Embedding(8, 4)
        self.net = nn.Sequential(nn.Linear(8, 24), nn.ReLU(), nn.Linear(24, 16), nn.ReLU())
        self.eta = nn.Linear(16, 1)

    def forward(self, x, region):
        h = self.net(torch.cat([x, self.region(region)], -1))
        eta = self.eta(h).squeeze(-1) + x[:, 0]
        return eta.clamp(-self.limit, self.limit) if self.limit else eta


def deviance(eta, y):
    rate = torch.exp(eta)  # ORIGIN
    return (rate - y * eta).mean()


def build(fixed: bool = False):
    torch.manual_seed(30)
    net = Claims(15.0 if fixed else None)
    opt = torch.optim.Adam(net.parameters(), lr=1e-3)
    gen = torch.Generator().manual_seed(130)

    def step(i):
        x = 0.5 * torch.randn(32, 4, generator=gen)
        if i == 3:
            x[20, 0] = 300.0
        region = torch.randint(0, 8, (32,), generator=gen)
        y = torch.poisson(torch.full((32,), 0.3), generator=gen)
        opt.zero_grad()
        loss = deviance(net(x, region), y)
        loss.backward()
        opt.step()
        return loss

    return net, step
