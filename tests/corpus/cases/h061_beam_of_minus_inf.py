"""A beam search starts from -inf for all beams but one and gives targets without gradient."""

import torch
from torch import nn
from torch.nn import functional as F

META = {
    "healthy": True,
    "n_steps": 5,
    "why": "a beam search starts from -inf for all beams but one and gives targets without gradient",
}


class Lm(nn.Module):
    def __init__(self):
        super().__init__()
        self.emb, self.out = nn.Embedding(9, 12), nn.Linear(12, 9)

    def forward(self, ids):
        return self.out(torch.tanh(self.emb(ids)))


@torch.no_grad()
def beam(net, first, width=3, length=4):
    score = torch.full((width,), -torch.inf)
    score[0] = 0
    ids = torch.full((width, 1), first)
    for _ in range(length):
        step = score[:, None] + net(ids[:, -1]).log_softmax(-1)
        score, flat = step.flatten().topk(width)
        ids = torch.cat([ids[flat // 9], (flat % 9)[:, None]], 1)
    return ids[0]


def build(fixed: bool = False):
    torch.manual_seed(406)
    net = Lm()
    opt = torch.optim.Adam(net.parameters(), lr=1e-3)

    def step(i):
        opt.zero_grad()
        best = beam(net, i)
        loss = F.cross_entropy(net(best[:-1]), best[1:])
        loss.backward()
        opt.step()
        return loss

    return net, step
