"""Class prototypes by a one-hot einsum and an in-place division by the counts; an episode lacks a class."""

import torch
from torch import nn
from torch.nn import functional as F

META = {
    "origin_op": "div_",
    "also_ops": ("div",),
    "phase": "forward",
    "cause": "div-by-zero",
    "also_causes": ("empty-reduction",),
    "symptom": "loss-nan",
    "first_bad_step": 2,
    "n_steps": 4,
    "fix": "divide by at least one",
}


class ProtoNet(nn.Module):
    def __init__(self, ways, at_least):
        super().__init__()
        self.enc = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 8))
        self.ways, self.at_least = ways, at_least

    def prototypes(self, z, y):
        hot = F.one_hot(y, self.ways).to(z.dtype)
        protos = torch.einsum("nc,nd->cd", hot, z)
        return protos.div_(hot.sum(0).clamp_(min=self.at_least).unsqueeze(1))  # ORIGIN

    def forward(self, support, y, query):
        return -torch.cdist(self.enc(query), self.prototypes(self.enc(support), y)).square()


def build(fixed: bool = False):
    torch.manual_seed(1335)
    net = ProtoNet(4, 1.0 if fixed else 0.0)
    opt = torch.optim.Adam(net.parameters(), lr=1e-3)
    gen = torch.Generator().manual_seed(1340)

    def step(i):
        opt.zero_grad()
        y = torch.arange(12) % 4
        if i == 2:
            y[y == 3] = 0
        query = torch.randn(5, 6, generator=gen)
        loss = F.cross_entropy(net(torch.randn(12, 6, generator=gen), y, query), torch.arange(5) % 3)
        loss.backward()
        opt.step()
        return loss

    return net, step
