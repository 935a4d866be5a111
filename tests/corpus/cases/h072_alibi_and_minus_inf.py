"""ALiBi slopes and a causal mask of -inf are added to the scores; every query sees itself."""

import torch
from torch import nn
from torch.nn import functional as F

META = {
    "healthy": True,
    "n_steps": 4,
    "why": "no row is -inf throughout",
}


class Alibi(nn.Module):
    def __init__(self, n, heads=2, dim=8):
        super().__init__()
        self.qkv, self.out, self.heads = nn.Linear(dim, 3 * dim), nn.Linear(dim, 3), heads
        pos = torch.arange(n)
        slope = 2.0 ** -torch.arange(1, heads + 1)
        bias = -slope[:, None, None] * (pos[:, None] - pos[None]).abs()
        self.register_buffer("bias", bias + torch.full((n, n), -torch.inf).triu(1))

    def forward(self, x):
        b, n, d = x.shape
        q, k, v = self.qkv(x).view(b, n, self.heads, -1).transpose(1, 2).chunk(3, -1)
        w = torch.softmax(q @ k.mT / 2 + self.bias, -1)
        return self.out((w @ v).transpose(1, 2).reshape(b, n, d))


def build(fixed: bool = False):
    torch.manual_seed(1863)
    net = Alibi(5)
    opt = torch.optim.Adam(net.parameters(), lr=1e-3)
    gen = torch.Generator().manual_seed(1868)

    def step(i):
        opt.zero_grad()
        loss = F.cross_entropy(net(torch.randn(2, 5, 8, generator=gen)).flatten(0, 1), torch.arange(10) % 3)
        loss.backward()
        opt.step()
        return loss

    return net, step
