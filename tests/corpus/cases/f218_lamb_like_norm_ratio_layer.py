"""A cosine classifier divides by the product of norms and multiplies by where(); a zero prototype hides behind it."""

import torch
from torch import nn
from torch.nn import functional as F

META = {
    "origin_op": "div",
    "phase": "backward",
    "cause": "where-grad-trap",
    "also_causes": ("norm-at-zero", "div-by-zero"),
    "symptom": "grad-nan",
    "first_bad_step": 1,
    "n_steps": 4,
    "fix": "clamp the norm product",
}


class Cos(nn.Module):
    def __init__(self, floor):
        super().__init__()
        self.floor = floor
        self.enc = nn.Linear(5, 6)
        self.proto = nn.Parameter(torch.randn(3, 6))

    def forward(self, x, alive):
        h, w = self.enc(x), self.proto * alive[:, None]
        size = h.norm(dim=-1)[:, None] * w.norm(dim=-1)
        size = size.clamp(min=self.floor) if self.floor else size
        cos = (h @ w.t()) / size  # ORIGIN
        return torch.where(alive > 0, cos, torch.full_like(cos, -1.0)) * 5


def build(fixed: bool = False):
    torch.manual_seed(508)
    net = Cos(1e-6 if fixed else 0.0)
    opt = torch.optim.Adam(net.parameters(), lr=1e-3)
    gen = torch.Generator().manual_seed(1008)

    def step(i):
        opt.zero_grad()
        x = torch.randn(6, 5, generator=gen)
        alive = torch.tensor([1.0, 1.0, 1.0 if i == 0 else 0.0])
        loss = F.cross_entropy(net(x, alive), torch.arange(6) % 2)
        loss.backward()
        opt.step()
        return loss

    return net, step
