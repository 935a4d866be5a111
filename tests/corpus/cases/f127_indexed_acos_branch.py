"""A bond-angle loss drops collinear triples by indexing the angles after acos; their gradient zero meets an infinite slope."""

import torch
from torch import nn
from torch.nn import functional as F

META = {
    "origin_op": "acos",
    "phase": "backward",
    "cause": "where-grad-trap",
    "also_causes": ("inverse-function-at-edge",),
    "symptom": "grad-nan",
    "first_bad_step": 2,
    "n_steps": 5,
    "fix": "index the cosines, then take acos",
}


class Conformer(nn.Module):
    def __init__(self):
        super().__init__()
        self.delta = nn.Sequential(nn.Linear(3, 16), nn.Tanh(), nn.Linear(16, 3))

    def forward(self, pos):
        return pos + self.delta(pos)


def angles(a, b, c, filter_first):
    u, v = F.normalize(a - b, dim=-1), F.normalize(c - b, dim=-1)
    cos = (u * v).sum(-1)
    keep = cos.abs() < 1
    if filter_first:
        return torch.acos(cos[keep])
    theta = torch.acos(cos.clamp(-1, 1))  # ORIGIN
    return theta[keep]


def build(fixed: bool = False):
    torch.manual_seed(221)
    net = Conformer()
    opt = torch.optim.SGD(net.parameters(), lr=1e-2)
    gen = torch.Generator().manual_seed(721)

    def step(i):
        opt.zero_grad()
        pos = torch.randn(3, 10, 3, generator=gen)
        if i == 2:
            net.delta[2].weight.data.zero_()
            net.delta[2].bias.data.zero_()
            pos[0, 4], pos[1, 4], pos[2, 4] = torch.tensor([[-1.0, 0, 0], [0, 0, 0], [1, 0, 0]])
            pos[1, 4] = 0.0
        moved = net(pos)
        loss = (angles(*moved, fixed) - 1.9).square().mean()
        loss.backward()
        opt.step()
        return loss

    return net, step
