"""Multi-task targets with NaN for 'not measured'; each task's loss takes only the rows that were measured."""

import torch
from torch import nn

META = {"healthy": True, "n_steps": 5, "why": "the NaN targets are left out by indexing before they meet a prediction"}


class MultiTask(nn.Module):
    def __init__(self, tasks=3):
        super().__init__()
        self.trunk = nn.Sequential(nn.Linear(10, 24), nn.ReLU(), nn.Linear(24, 16), nn.ReLU())
        self.heads = nn.ModuleList([nn.Linear(16, 1) for _ in range(tasks)])

    def forward(self, x):
        h = self.trunk(x)
        return torch.cat([head(h) for head in self.heads], 1)


def build(fixed: bool = False):
    torch.manual_seed(10)
    net = MultiTask()
    opt = torch.optim.Adam(net.parameters(), lr=2e-3)
    gen = torch.Generator().manual_seed(310)

    def step(i):
        x = torch.randn(20, 10, generator=gen)
        y = x[:, :3] + 0.1 * torch.randn(20, 3, generator=gen)
        y[torch.rand(20, 3, generator=gen) < 0.4] = torch.nan
        known = ~torch.isnan(y)
        opt.zero_grad()
        loss = nn.functional.smooth_l1_loss(net(x)[known], y[known])
        loss.backward()
        opt.step()
        return loss

    return net, step
