"""A symmetric log transform by where over abs, with log1p: finite on both sides and in both gradients."""

import torch
from torch import nn

META = {
    "healthy": True,
    "n_steps": 4,
    "why": "log1p of a magnitude has a finite slope everywhere",
}


class Symlog(nn.Module):
    def forward(self, x):
        return torch.where(x >= 0, torch.log1p(x.abs()), -torch.log1p(x.abs()))


def build(fixed: bool = False):
    torch.manual_seed(1912)
    net = nn.Sequential(nn.Linear(3, 1, bias=False), Symlog())
    opt = torch.optim.Adam(net.parameters(), lr=1e-3)
    gen = torch.Generator().manual_seed(1917)

    def step(i):
        opt.zero_grad()
        x = torch.randn(8, 3, generator=gen)
        x[2] = 0
        loss = (net(x) - x.sum(1, keepdim=True)).square().mean()
        loss.backward()
        opt.step()
        return loss

    return net, step
