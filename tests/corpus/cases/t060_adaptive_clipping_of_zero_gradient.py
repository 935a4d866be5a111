"""Adaptive gradient clipping by hand divides by the gradient's norm row by row; the rows of an absent class have norm zero."""

import torch
from torch import nn

META = {
    "origin_op": "div",
    "also_ops": ("mul_", "mul"),
    "phase": "optimizer",
    "also_phase": "forward",
    "cause": "div-by-zero",
    "also_causes": ("norm-at-zero", "optimizer-arithmetic", "zero-times-inf", "clip-nonfinite-norm"),
    "symptom": "grad-nan",
    "first_bad_step": 3,
    "n_steps": 6,
    "fix": "divide by the norm clamped at 1e-6",
}


class Bow(nn.Module):
    def __init__(self, vocab=30, dim=8):
        super().__init__()
        self.emb = nn.Embedding(vocab, dim)
        self.head = nn.Linear(dim, 3)

    def forward(self, ids):
        return self.head(torch.tanh(self.emb(ids)).mean(1))


@torch.no_grad()
def clip_adaptively(params, factor, least):
    for p in params:
        size = p.norm(dim=-1, keepdim=True).clamp_min(1e-3)
        slope = p.grad.norm(dim=-1, keepdim=True).clamp_min(least)
        p.grad.mul_((factor * size / slope).clamp_max(1.0) if least else factor * size / slope)  # ORIGIN


def build(fixed: bool = False):
    torch.manual_seed(460)
    net = Bow()
    opt = torch.optim.SGD(net.parameters(), lr=0.1)
    gen = torch.Generator().manual_seed(560)

    def step(i):
        ids = torch.randint(0, 30 if i < 3 else 25, (80, 6), generator=gen)
        opt.zero_grad()
        loss = nn.functional.cross_entropy(net(ids), ids[:, 0] % 3)
        loss.backward()
        clip_adaptively(net.parameters(), 0.1, 1e-6 if fixed else 0.0)
        opt.step()
        return loss

    return net, step
