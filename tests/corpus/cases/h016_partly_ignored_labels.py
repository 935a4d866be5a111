"""Token classification in which most labels are -100; each batch keeps a few."""

import torch
from torch import nn

META = {"healthy": True, "n_steps": 5, "why": "ignored labels are ordinary as long as one is left"}


class Tagger(nn.Module):
    def __init__(self):
        super().__init__()
        self.emb = nn.Embedding(25, 12)
        self.rnn = nn.GRU(12, 12, batch_first=True, bidirectional=True)
        self.out = nn.Linear(24, 5)

    def forward(self, ids):
        return self.out(self.rnn(self.emb(ids))[0])


def build(fixed: bool = False):
    torch.manual_seed(16)
    net = Tagger()
    opt = torch.optim.AdamW(net.parameters(), lr=2e-3)
    gen = torch.Generator().manual_seed(316)

    def step(i):
        ids = torch.randint(0, 25, (3, 9), generator=gen)
        labels = torch.randint(0, 5, (3, 9), generator=gen)
        labels[:, 1:] = -100
        opt.zero_grad()
        loss = nn.functional.cross_entropy(net(ids).flatten(0, 1), labels.flatten())
        loss.backward()
        opt.step()
        return loss

    return net, step
