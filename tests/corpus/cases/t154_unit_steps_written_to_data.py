"""Steps of unit length written to p.data, without no_grad; in a batch in which no sample counts the gradients have length zero."""

import torch
from torch import nn

META = {
    "origin_op": "div",
    "phase": "optimizer",
    "cause": "div-by-zero",
    "also_causes": ("norm-at-zero", "optimizer-arithmetic"),
    "symptom": "param-nan",
    "first_bad_step": 2,
    "n_steps": 4,
    "fix": "add 1e-9 to the norm",
    "twin_rests": (2,),
}


def build(fixed: bool = False):
    torch.manual_seed(654)
    net = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 2))
    gen = torch.Generator().manual_seed(754)
    eps = 1e-9 if fixed else 0.0

    def step(i):
        x = torch.randn(8, 4, generator=gen)
        counts = torch.full((8, 1), float(i != 2))
        net.zero_grad()
        loss = ((net(x) - x[:, :2]).square() * counts).mean()
        loss.backward()
        for p in net.parameters():
            unit = p.grad / (p.grad.norm() + eps)  # ORIGIN
            p.data.add_(unit, alpha=-0.1)
        return loss

    return net, step
