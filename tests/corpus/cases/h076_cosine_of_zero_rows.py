"""F.cosine_similarity and F.normalize of zero rows in float32."""

import torch
from torch import nn
from torch.nn import functional as F

META = {
    "healthy": True,
    "n_steps": 4,
    "why": "both have an epsilon that float32 holds",
}


class Siamese(nn.Module):
    def __init__(self):
        super().__init__()
        self.f = nn.Linear(4, 6, bias=False)

    def forward(self, a, b):
        u, v = self.f(a), self.f(b)
        return F.cosine_similarity(u, v) + (F.normalize(u, dim=1) * F.normalize(v, dim=1)).sum(1)


def build(fixed: bool = False):
    torch.manual_seed(1919)
    net = Siamese()
    opt = torch.optim.Adam(net.parameters(), lr=1e-3)
    gen = torch.Generator().manual_seed(1924)

    def step(i):
        opt.zero_grad()
        a, b = torch.randn(6, 4, generator=gen), torch.randn(6, 4, generator=gen)
        a[1] = 0
        loss = (net(a, b) - 1).square().mean()
        loss.backward()
        opt.step()
        return loss

    return net, step
