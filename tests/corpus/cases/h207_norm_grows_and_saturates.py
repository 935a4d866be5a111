"""Embedding norms grow for a while under a contrastive loss with a learned temperature, and then level off through weight decay."""

import torch
from torch import nn

META = {
    "healthy": True,
    "n_steps": 60,
    "why": "the scores grow for a while but saturate far below any dtype's maximum",
}


class Encoder(nn.Module):
    def __init__(self, vocab=80, dim=24):
        super().__init__()
        self.emb = nn.Embedding(vocab, dim)
        nn.init.normal_(self.emb.weight, std=0.1)
        self.drop = nn.Dropout(0.1)
        self.log_scale = nn.Parameter(torch.zeros(()))

    def forward(self, ids):
        return self.drop(self.emb(ids)).mean(1)


def build(fixed: bool = False):
    torch.manual_seed(607)
    net = Encoder()
    opt = torch.optim.AdamW(net.parameters(), lr=0.05, weight_decay=2.0)
    gen = torch.Generator().manual_seed(707)

    def step(i):
        ids = torch.randint(0, 80, (16, 4), generator=gen)
        opt.zero_grad()
        sim = net(ids) @ net(ids).T * net.log_scale.exp()
        loss = nn.functional.cross_entropy(sim, torch.arange(16))
        loss.backward()
        opt.step()
        return loss

    return net, step
