"""Clipping at a norm of 0.5 that takes effect at every step, in the right order, on a sound transformer layer."""

import torch
from torch import nn

META = {
    "healthy": True,
    "n_steps": 20,
    "why": "gradients two to ten times the bound are the daily business of clipping",
}


class Tagger(nn.Module):
    def __init__(self, vocab=30, dim=16):
        super().__init__()
        self.emb = nn.Embedding(vocab, dim)
        self.layer = nn.TransformerEncoderLayer(dim, 2, 32, dropout=0.0, batch_first=True)
        self.head = nn.Linear(dim, 5)

    def forward(self, ids):
        return self.head(self.layer(self.emb(ids)))


def build(fixed: bool = False):
    torch.manual_seed(602)
    net = Tagger()
    opt = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
    gen = torch.Generator().manual_seed(702)

    def step(i):
        ids = torch.randint(0, 30, (6, 8), generator=gen)
        opt.zero_grad()
        loss = nn.functional.cross_entropy(net(ids).flatten(0, 1), ids.flatten() % 5)
        loss.backward()
        nn.utils.clip_grad_norm_(net.parameters(), 0.2, error_if_nonfinite=True)
        opt.step()
        return loss

    return net, step
