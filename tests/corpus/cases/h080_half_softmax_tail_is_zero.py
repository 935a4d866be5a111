"""Half-precision attention whose far keys get a weight of exactly zero, while near ones carry the signal."""

import torch
from torch import nn
from torch.nn import functional as F

META = {
    "healthy": True,
    "n_steps": 4,
    "why": "weights that vanish in half are the tail of a sum of one",
}


class Local(nn.Module):
    def __init__(self):
        super().__init__()
        self.v, self.out = nn.Linear(6, 6), nn.Linear(6, 2)

    def forward(self, x):
        n = x.shape[1]
        far = -4.0 * (torch.arange(n)[:, None] - torch.arange(n)).abs().to(x.dtype)
        return self.out(far.softmax(-1) @ self.v(x)).float().mean(1)


def build(fixed: bool = False):
    torch.manual_seed(1898)
    net = Local().half()
    opt = torch.optim.SGD(net.parameters(), lr=0.1)
    gen = torch.Generator().manual_seed(1903)

    def step(i):
        opt.zero_grad()
        loss = F.cross_entropy(net(torch.randn(4, 9, 6, generator=gen).half()), torch.arange(4) % 2)
        loss.backward()
        opt.step()
        return loss

    return net, step
