"""A hook on an embedding scales its gradient to unit norm; with a batch in which the gate is shut there is nothing to scale."""

import torch
from torch import nn

META = {
    "origin_op": "div",
    "phase": "backward",
    "also_phase": "optimizer",
    "cause": "div-by-zero",
    "also_causes": ("norm-at-zero",),
    "symptom": "grad-nan",
    "first_bad_step": 3,
    "n_steps": 6,
    "fix": "clamp the norm",
}


class Gated(nn.Module):
    def __init__(self):
        super().__init__()
        self.emb = nn.Embedding(20, 8)
        self.gate = nn.Linear(3, 8)
        self.head = nn.Linear(11, 2)

    def forward(self, ids, x):
        h = self.emb(ids) * torch.relu(self.gate(x))
        return self.head(torch.cat([h, x], -1))


def build(fixed: bool = False):
    torch.manual_seed(609)
    net = Gated()
    least = 1e-8 if fixed else 0.0

    def unit(g):
        return g / g.norm().clamp(min=least)  # ORIGIN

    net.emb.weight.register_hook(unit)
    opt = torch.optim.SGD(net.parameters(), lr=0.05)
    gen = torch.Generator().manual_seed(709)

    def step(i):
        ids = torch.randint(0, 20, (16,), generator=gen)
        x = torch.randn(16, 3, generator=gen)
        y = (x[:, 0] > 0).long()
        if i == 3:
            x = torch.zeros(16, 3)
            with torch.no_grad():
                net.gate.bias.fill_(-0.5)
        opt.zero_grad()
        loss = nn.functional.cross_entropy(net(ids, x), y)
        loss.backward()
        opt.step()
        return loss

    return net, step
