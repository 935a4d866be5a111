"""Hyperbolic word embeddings: the Lorentz product of a point with itself rounds to less than one, outside acosh's domain."""

import torch
from torch import nn

META = {
    "origin_op": "acosh",
    "phase": "forward",
    "cause": "inverse-function-domain",
    "also_causes": ("inverse-function-at-edge",),
    "symptom": "loss-nan",
    "first_bad_step": 3,
    "n_steps": 6,
    "fix": "clamp the product at 1 + 1e-6",
}


class Lorentz(nn.Module):
    def __init__(self, floor, words=30, dim=6):
        super().__init__()
        self.floor = floor
        self.emb = nn.Embedding(words, dim)
        self.proj = nn.Sequential(nn.Linear(dim, 12), nn.Tanh(), nn.Linear(12, dim))

    def lift(self, v):
        return torch.cat([(1 + v.square().sum(-1, keepdim=True)).sqrt(), v], -1)

    def forward(self, a, b):
        x, y = (self.lift(4 * self.proj(self.emb(t))) for t in (a, b))
        product = x[..., 0] * y[..., 0] - (x[..., 1:] * y[..., 1:]).sum(-1)
        if self.floor:
            product = product.clamp_min(self.floor)
        return torch.acosh(product)  # ORIGIN


def build(fixed: bool = False):
    torch.manual_seed(23)
    net = Lorentz(1 + 1e-6 if fixed else 0.0)
    opt = torch.optim.Adam(net.parameters(), lr=2e-3)
    gen = torch.Generator().manual_seed(123)

    def step(i):
        a = torch.randint(0, 30, (40,), generator=gen)
        b = (a + torch.randint(1, 30, (40,), generator=gen)) % 30
        if i == 3:
            b[10:25] = a[10:25]  # self-loops of the taxonomy
        y = (torch.rand(40, generator=gen) < 0.5).float()
        opt.zero_grad()
        loss = nn.functional.binary_cross_entropy_with_logits(2.0 - net(a, b), y)
        loss.backward()
        opt.step()
        return loss

    return net, step
