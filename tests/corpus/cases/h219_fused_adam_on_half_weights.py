"""The fused Adam on float16 weights with the default eps: the kernel computes in float32, so rows without gradient stay where they are."""

import torch
from torch import nn

META = {
    "healthy": True,
    "n_steps": 10,
    "why": "eps would be zero in float16, but is not used in float16 here",
}


class Bag(nn.Module):
    def __init__(self, vocab=60, dim=16):
        super().__init__()
        self.emb = nn.Embedding(vocab, dim)
        self.head = nn.Linear(dim, 4)

    def forward(self, ids):
        return self.head(torch.tanh(self.emb(ids).mean(1)))


def build(fixed: bool = False):
    torch.manual_seed(619)
    net = Bag().half()
    opt = torch.optim.Adam(net.parameters(), lr=3e-3, fused=True)
    gen = torch.Generator().manual_seed(719)

    def step(i):
        ids = torch.randint(0, 60, (12, 4), generator=gen)
        opt.zero_grad()
        loss = nn.functional.cross_entropy(net(ids).float(), ids[:, 0] % 4)
        loss.backward()
        opt.step()
        return loss

    return net, step
