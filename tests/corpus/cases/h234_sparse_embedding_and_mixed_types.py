"""A sparse embedding with SparseAdam beside a bfloat16 head with Adam: two optimizers, gradients of two layouts and two types."""

import torch
from torch import nn

META = {
    "healthy": True,
    "n_steps": 6,
    "why": "rows that the batch does not hold have no gradient at all",
}


class Mixed(nn.Module):
    def __init__(self):
        super().__init__()
        self.emb = nn.Embedding(50, 8, sparse=True)
        self.head = nn.Linear(8, 3).bfloat16()

    def forward(self, ids):
        return self.head(self.emb(ids).mean(1).bfloat16()).float()


def build(fixed: bool = False):
    torch.manual_seed(834)
    net = Mixed()
    opts = [torch.optim.SparseAdam(net.emb.parameters(), lr=1e-2), torch.optim.Adam(net.head.parameters(), lr=1e-2)]
    gen = torch.Generator().manual_seed(934)

    def step(i):
        ids = torch.randint(0, 50, (8, 3), generator=gen)
        for opt in opts:
            opt.zero_grad()
        loss = nn.functional.cross_entropy(net(ids), ids[:, 0] % 3)
        loss.backward()
        for opt in opts:
            opt.step()
        return loss

    return net, step
