"""Rows without a valid entry are counted as one and weighted zero."""

import torch
from torch import nn
from torch.nn import functional as F

META = {
    "healthy": True,
    "n_steps": 5,
    "why": "rows without a valid entry are counted as one and weighted zero",
}


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.l = nn.Linear(3, 8)
        self.out = nn.Linear(8, 1)

    def forward(self, x, mask):
        h = torch.relu(self.l(x)) * mask[..., None]
        return self.out(h.sum(1) / mask.sum(1, keepdim=True).clamp(min=1)).squeeze(-1)


def build(fixed: bool = False):
    torch.manual_seed(403)
    net = Net()
    opt = torch.optim.Adam(net.parameters(), lr=1e-3)
    gen = torch.Generator().manual_seed(903)

    def step(i):
        opt.zero_grad()
        x = torch.randn(6, 5, 3, generator=gen)
        mask = (torch.rand(6, 5, generator=gen) < 0.5).float()
        mask[2] = 0
        loss = F.mse_loss(net(x, mask), x[:, 0, 0])
        loss.backward()
        opt.step()
        return loss

    return net, step
