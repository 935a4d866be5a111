"""Double backward through a smooth critic with an epsilon under the root."""

import torch
from torch import nn

META = {
    "healthy": True,
    "n_steps": 5,
    "why": "double backward through a smooth critic with an epsilon under the root",
}


class Critic(nn.Module):
    def __init__(self):
        super().__init__()
        self.seq = nn.Sequential(nn.Linear(4, 16), nn.SiLU(), nn.Linear(16, 1))

    def forward(self, x):
        return self.seq(x).squeeze(-1)


def build(fixed: bool = False):
    torch.manual_seed(315)
    net = Critic()
    opt = torch.optim.Adam(net.parameters(), lr=1e-3)
    gen = torch.Generator().manual_seed(815)

    def step(i):
        opt.zero_grad()
        real, fake = torch.randn(2, 8, 4, generator=gen)
        mix = (0.5 * real + 0.5 * fake).requires_grad_()
        (g,) = torch.autograd.grad(net(mix).sum(), mix, create_graph=True, retain_graph=True)
        penalty = ((g.square().sum(-1) + 1e-12).sqrt() - 1).square().mean()
        loss = net(fake).mean() - net(real).mean() + 10 * penalty
        loss.backward()
        opt.step()
        return loss

    return net, step
