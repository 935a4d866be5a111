"""Poincare distance of a point to itself: acosh at one has an infinite derivative."""
import torch
from torch import nn

META = {
    "origin_op": "acosh", "phase": "backward", "cause": "inverse-function-at-edge", "symptom": "grad-nan",
    "first_bad_step": 3, "n_steps": 5, "fix": "clamp the argument above one",
}


class PoincareEmbedding(nn.Module):
    def __init__(self, n, floor):
        super().__init__()
        self.table = nn.Embedding(n, 2)
        nn.init.uniform_(self.table.weight, -1e-1, 1e-1)
        self.floor = floor

    def distance(self, u, v):
        sq = (u - v).pow(2).sum(-1)
        room = (1 - u.pow(2).sum(-1)) * (1 - v.pow(2).sum(-1))
        return torch.acosh(  # ORIGIN
            (1 + 2 * sq / room.clamp_min(1e-5))
            .clamp_min(1 + self.floor)
        )

    def forward(self, pairs):
        return self.distance(self.table(pairs[:, 0]), self.table(pairs[:, 1]))


def build(fixed=False):
    torch.manual_seed(75)
    net = PoincareEmbedding(12, 1e-5 if fixed else 0.0)
    opt = torch.optim.SGD(net.parameters(), lr=1e-2)
    gen = torch.Generator().manual_seed(76)

    def step(i):
        a = torch.randint(0, 6, (10,), generator=gen)
        b = torch.randint(6, 12, (10, 4), generator=gen)
        if i == 3:
            b[4, 2] = a[4]  # the negative sampler drew the anchor
        neg = torch.stack([net(torch.stack([a, b[:, k]], 1)) for k in range(4)], 1)
        loss = -torch.log_softmax(-neg, 1)[:, 0].mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
        return loss

    return net, step
