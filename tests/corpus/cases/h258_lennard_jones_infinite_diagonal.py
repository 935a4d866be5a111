"""A pair potential whose diagonal distances are set to inf before the root, so that every term and its gradient is zero there."""
import torch
from torch import nn

META = {"healthy": True, "n_steps": 6, "why": "1 / inf is zero, and so is its derivative"}


class Pair(nn.Module):
    def __init__(self):
        super().__init__()
        self.log_eps, self.log_sigma = nn.Parameter(torch.tensor(-1.0)), nn.Parameter(torch.tensor(0.0))
        self.shift = nn.Linear(3, 3)

    def forward(self, x):
        x = x + 0.01 * self.shift(x)
        d2 = (x[:, :, None] - x[:, None]).pow(2).sum(-1)
        d2 = d2.masked_fill(torch.eye(x.shape[1], dtype=torch.bool), float("inf"))
        s6 = (self.log_sigma.exp() ** 2 / d2) ** 3
        return (2 * self.log_eps.exp() * (s6**2 - s6)).sum((1, 2)), torch.sqrt(d2).amin(2)


def build(fixed: bool = False):
    torch.manual_seed(571)
    net = Pair()
    opt = torch.optim.Adam(net.parameters(), lr=1e-2)
    gen = torch.Generator().manual_seed(572)
    grid = torch.stack(torch.meshgrid(*[torch.arange(2.0)] * 3, indexing="ij"), -1).view(8, 3) * 1.4

    def step(i):
        x = grid + 0.1 * torch.randn(5, 8, 3, generator=gen)
        opt.zero_grad()
        energy, nearest = net(x)
        loss = (energy + 1.0).pow(2).mean() + (nearest - 1.2).pow(2).mean()
        loss.backward()
        opt.step()
        return loss

    return net, step
