"""Optimal transport in the log domain with a forbidden cell of -inf."""

import torch
from torch import nn

META = {
    "healthy": True,
    "n_steps": 5,
    "why": "optimal transport in the log domain with a forbidden cell of -inf",
}


class Match(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(3, 8), nn.Linear(3, 8)

    def forward(self, x, y, forbid):
        s = (self.a(x) @ self.b(y).t()).masked_fill(forbid, -torch.inf)
        for _ in range(5):
            s = s - s.logsumexp(1, keepdim=True)
            s = s - s.logsumexp(0, keepdim=True)
        return s.exp()


def build(fixed: bool = False):
    torch.manual_seed(320)
    net = Match()
    opt = torch.optim.Adam(net.parameters(), lr=1e-3)
    gen = torch.Generator().manual_seed(820)

    def step(i):
        opt.zero_grad()
        x, y = torch.randn(2, 5, 3, generator=gen)
        forbid = torch.zeros(5, 5, dtype=torch.bool)
        forbid[1, 2] = forbid[3, 0] = True
        plan = net(x, y, forbid)
        loss = (plan - torch.eye(5)).square().sum()
        loss.backward()
        opt.step()
        return loss

    return net, step
