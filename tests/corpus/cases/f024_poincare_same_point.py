"""Poincare distance of a user and an item placed on the same point: acosh(1) is zero, its derivative infinite."""

import torch
from torch import nn

META = {
    "origin_op": "acosh",
    "phase": "backward",
    "cause": "inverse-function-at-edge",
    "symptom": "grad-nan",
    "first_bad_step": 0,
    "n_steps": 4,
    "fix": "1 + 1e-6 as the lowest argument",
}


class HyperbolicRecommender(nn.Module):
    def __init__(self, floor, users=12, items=16, dim=4):
        super().__init__()
        self.floor = floor
        self.user, self.item = nn.Embedding(users, dim), nn.Embedding(items, dim)
        for table in (self.user, self.item):
            nn.init.uniform_(table.weight, -0.1, 0.1)
        with torch.no_grad():
            self.item.weight[5:7] = self.user.weight[2:4]  # warm start: an item begins at its first buyer
        self.scale = nn.Sequential(nn.Linear(1, 8), nn.Tanh(), nn.Linear(8, 1))

    def distance(self, u, v):
        gap = (u - v).square().sum(-1)
        room = (1 - u.square().sum(-1)) * (1 - v.square().sum(-1))
        return torch.acosh(1 + 2 * gap / room + self.floor)  # ORIGIN

    def forward(self, user, item):
        d = self.distance(self.user(user), self.item(item))
        return self.scale(d.unsqueeze(-1)).squeeze(-1)


def build(fixed: bool = False):
    torch.manual_seed(24)
    net = HyperbolicRecommender(1e-6 if fixed else 0.0)
    opt = torch.optim.Adam(net.parameters(), lr=2e-3)
    gen = torch.Generator().manual_seed(124)

    def step(i):
        user = torch.cat([torch.tensor([2, 3]), torch.randint(0, 12, (14,), generator=gen)])
        item = torch.cat([torch.tensor([5, 6]), torch.randint(0, 16, (14,), generator=gen)])
        y = (torch.rand(16, generator=gen) < 0.5).float()
        opt.zero_grad()
        loss = nn.functional.binary_cross_entropy_with_logits(net(user, item), y)
        loss.backward()
        opt.step()
        return loss

    return net, step
