"""nn.EmbeddingBag with mean over bags of which one is empty."""

import torch
from torch import nn
from torch.nn import functional as F

META = {
    "healthy": True,
    "n_steps": 4,
    "why": "torch gives zeros for an empty bag",
}


class Bags(nn.Module):
    def __init__(self):
        super().__init__()
        self.bag, self.out = nn.EmbeddingBag(30, 6, mode="mean"), nn.Linear(6, 3)

    def forward(self, ids, offsets):
        return self.out(self.bag(ids, offsets))


def build(fixed: bool = False):
    torch.manual_seed(1814)
    net = Bags()
    opt = torch.optim.Adam(net.parameters(), lr=1e-3)
    gen = torch.Generator().manual_seed(1819)

    def step(i):
        opt.zero_grad()
        ids = torch.randint(0, 30, (9,), generator=gen)
        loss = F.cross_entropy(net(ids, torch.tensor([0, 4, 4, 7])), torch.tensor([0, 1, 2, 0]))
        loss.backward()
        opt.step()
        return loss

    return net, step
