"""Matrix factorisation of raw play counts with sparse embeddings and a rate meant for ratings: the factors leap ever higher."""

import torch
from torch import nn

META = {
    "origin_op": "add_",
    "phase": "optimizer",
    "cause": "learning-rate",
    "also_causes": ("exploding-gradient",),
    "symptom": "loss-nan",
    "first_bad_step": 4,
    "n_steps": 10,
    "oracle": "drift",
    "fix": "fit the logarithm of the counts",
}


class Factors(nn.Module):
    def __init__(self):
        super().__init__()
        self.user = nn.Embedding(20, 8, sparse=True)
        self.item = nn.Embedding(30, 8, sparse=True)

    def forward(self, u, v):
        return (self.user(u) * self.item(v)).sum(-1)  # FIRST


def build(fixed: bool = False):
    torch.manual_seed(631)
    net = Factors()
    opt = torch.optim.SGD(net.parameters(), lr=0.01)
    gen = torch.Generator().manual_seed(731)
    plays = torch.randint(0, 900, (20, 30), generator=gen).float()
    if fixed:
        plays = torch.log1p(plays)

    def step(i):
        u, v = torch.randint(0, 20, (64,), generator=gen), torch.randint(0, 30, (64,), generator=gen)
        opt.zero_grad()
        loss = (net(u, v) - plays[u, v]).square().sum()  # FIRST
        loss.backward()
        opt.step()  # ORIGIN
        return loss

    return net, step
