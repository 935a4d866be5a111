"""Cosine scores between sets are written to zero where they are NaN, after the division by norms that are zero."""

import torch
from torch import nn

META = {
    "origin_op": "div",
    "phase": "backward",
    "cause": "repair-forward-only",
    "also_causes": ("norm-at-zero", "div-by-zero"),
    "symptom": "grad-nan",
    "first_bad_step": 2,
    "n_steps": 5,
    "fix": "clamp the norms",
}


class Sets(nn.Module):
    def __init__(self, floor):
        super().__init__()
        self.floor = floor
        self.enc = nn.Linear(6, 10, bias=False)

    def forward(self, a, b):
        a, b = torch.relu(self.enc(a)), torch.relu(self.enc(b))
        size = a.norm(dim=-1) * b.norm(dim=-1)
        if self.floor:
            size = size.clamp(min=1e-3)
        cos = (a * b).sum(-1) / size  # ORIGIN
        cos[torch.isnan(cos)] = 0.0
        return cos


def build(fixed: bool = False):
    torch.manual_seed(408)
    net = Sets(fixed)
    opt = torch.optim.Adam(net.parameters(), lr=1e-3)
    gen = torch.Generator().manual_seed(908)

    def step(i):
        opt.zero_grad()
        a = torch.rand(8, 6, generator=gen)
        if i == 2:
            a[5] = 0.0
        loss = (net(a, a + 0.1) - 0.5).square().mean()
        loss.backward()
        opt.step()
        return loss

    return net, step
