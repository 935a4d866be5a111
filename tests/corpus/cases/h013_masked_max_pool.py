"""Max pooling over padded sequences: padding is filled with -inf so that it never wins."""

import torch
from torch import nn

META = {"healthy": True, "n_steps": 5, "why": "every sequence has at least one token, so each maximum is finite"}


class TextCNN(nn.Module):
    def __init__(self):
        super().__init__()
        self.emb = nn.Embedding(30, 12, padding_idx=0)
        self.convs = nn.ModuleList([nn.Conv1d(12, 8, k, padding=k // 2) for k in (1, 3, 5)])
        self.head = nn.Linear(24, 4)

    def forward(self, ids):
        e = self.emb(ids).transpose(1, 2)
        pad = ids.eq(0).unsqueeze(1)
        pooled = [conv(e).masked_fill(pad, float("-inf")).max(-1).values for conv in self.convs]
        return self.head(torch.relu(torch.cat(pooled, 1)))


def build(fixed: bool = False):
    torch.manual_seed(13)
    net = TextCNN()
    opt = torch.optim.Adam(net.parameters(), lr=2e-3)
    gen = torch.Generator().manual_seed(313)

    def step(i):
        ids = torch.randint(1, 30, (6, 10), generator=gen)
        ids = ids * (torch.arange(10) < torch.randint(1, 11, (6, 1), generator=gen))
        y = torch.randint(0, 4, (6,), generator=gen)
        opt.zero_grad()
        loss = nn.functional.cross_entropy(net(ids), y)
        loss.backward()
        opt.step()
        return loss

    return net, step
