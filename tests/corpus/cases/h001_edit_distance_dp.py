"""A soft edit-distance DP starts from a border of +inf; every cell on the way to the loss has a finite neighbour."""

import torch
from torch import nn

META = {
    "healthy": True,
    "n_steps": 5,
    "why": "softmin over an infinite and a finite cell is finite, gradients included",
}


class Embed(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Conv1d(2, 12, 3, padding=1), nn.Tanh(), nn.Conv1d(12, 8, 3, padding=1))

    def forward(self, x):
        return self.net(x).transpose(1, 2)


def soft_dtw(cost, gamma=0.5):
    n, m = cost.shape
    row = [torch.zeros(())] + [torch.full((), torch.inf) for _ in range(m)]
    for i in range(n):
        new = [torch.full((), torch.inf)]
        for j in range(m):
            near = torch.stack([row[j], row[j + 1], new[j]])
            new.append(cost[i, j] - gamma * torch.logsumexp(-near / gamma, 0))
        row = new
    return row[-1]


def build(fixed: bool = False):
    torch.manual_seed(1)
    net = Embed()
    opt = torch.optim.Adam(net.parameters(), lr=2e-3)
    gen = torch.Generator().manual_seed(301)

    def step(i):
        a, b = torch.randn(1, 2, 5, generator=gen), torch.randn(1, 2, 6, generator=gen)
        cost = (net(a)[0].unsqueeze(1) - net(b)[0].unsqueeze(0)).square().sum(-1)
        opt.zero_grad()
        loss = soft_dtw(cost) / 11
        loss.backward()
        opt.step()
        return loss

    return net, step
