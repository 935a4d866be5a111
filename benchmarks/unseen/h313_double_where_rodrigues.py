"""Rodrigues' formula with the double where: rest pose included."""
import torch
from torch import nn

META = {"healthy": True, "n_steps": 4, "why": "the argument is made safe before the division"}


def coefficients(v):
    sq = (v * v).sum(-1)
    tiny = sq < 1e-10
    angle = torch.where(tiny, torch.ones_like(sq), sq).sqrt()
    return torch.where(tiny, 1 - sq / 6, angle.sin() / angle), torch.where(tiny, 0.5 - sq / 24, (1 - angle.cos()) / angle**2)


def build(fixed=False):
    torch.manual_seed(327)
    net = nn.Linear(5, 3, bias=False)
    opt = torch.optim.Adam(net.parameters(), lr=1e-2)
    gen = torch.Generator().manual_seed(328)

    def step(i):
        x = torch.randn(7, 5, generator=gen)
        x[0] = 0
        v = net(x)
        a, b = coefficients(v)
        p = torch.randn(7, 3, generator=gen)
        c = torch.linalg.cross(v, p)
        q = p + a[:, None] * c + b[:, None] * torch.linalg.cross(v, c)
        loss = (q - p.roll(1, 1)).pow(2).mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
        return loss

    return net, step
