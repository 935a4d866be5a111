"""Farthest-point sampling keeps a table of smallest distances that starts at +inf."""

import torch
from torch import nn

META = {
    "healthy": True,
    "n_steps": 5,
    "why": "the first minimum replaces every infinity, and only indices leave the sampler",
}


@torch.no_grad()
def farthest_points(xyz, count):
    smallest = torch.full(xyz.shape[:2], float("inf"))
    chosen = [torch.zeros(len(xyz), dtype=torch.long)]
    rows = torch.arange(len(xyz))
    for _ in range(count - 1):
        gap = (xyz - xyz[rows, chosen[-1]].unsqueeze(1)).square().sum(-1)
        smallest = torch.minimum(smallest, gap)
        chosen.append(smallest.argmax(1))
    return torch.stack(chosen, 1)


class PointNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.local = nn.Sequential(nn.Linear(3, 16), nn.ReLU(), nn.Linear(16, 16), nn.ReLU())
        self.head = nn.Linear(16, 3)

    def forward(self, xyz):
        keep = farthest_points(xyz, 5)
        centre = xyz.gather(1, keep.unsqueeze(-1).expand(-1, -1, 3))
        offset = xyz.unsqueeze(1) - centre.unsqueeze(2)
        return self.head(self.local(offset).amax(2).amax(1))


def build(fixed: bool = False):
    torch.manual_seed(11)
    net = PointNet()
    opt = torch.optim.Adam(net.parameters(), lr=2e-3)
    gen = torch.Generator().manual_seed(311)

    def step(i):
        xyz = torch.randn(4, 14, 3, generator=gen)
        y = torch.randint(0, 3, (4,), generator=gen)
        opt.zero_grad()
        loss = nn.functional.cross_entropy(net(xyz), y)
        loss.backward()
        opt.step()
        return loss

    return net, step
