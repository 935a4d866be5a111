"""Cosine similarity written by hand in half: padding rows are zero vectors, the guard 1e-8 is zero in float16, and 0 / 0 is NaN.

Source: lightonai/pylate#239 (the 1e-8 guard is not representable in float16); pyg-team/pytorch_geometric#2106
"""
import torch
from torch import nn

META = {
    "origin_op": "div",
    "phase": "forward",
    "cause": "eps-underflow",
    "also_causes": ("div-by-zero",),
    "symptom": "loss-nan",
    "first_bad_step": 2,
    "n_steps": 6,
    "fix": "a guard that float16 holds (1e-4), or float32",
}


class Matcher(nn.Module):
    def __init__(self, eps):
        super().__init__()
        self.eps = eps
        self.emb = nn.Embedding(50, 16, padding_idx=0)
        self.proj = nn.Linear(16, 16, bias=False)

    def encode(self, ids):
        return self.proj(self.emb(ids).mean(1))

    def forward(self, a, b):
        za, zb = self.encode(a), self.encode(b)
        dot = (za * zb).sum(-1)
        size = za.norm(dim=-1) * zb.norm(dim=-1) + self.eps
        return dot / size  # ORIGIN


def build(fixed: bool = False):
    torch.manual_seed(340)
    net = Matcher(1e-3 if fixed else 1e-8).half()
    if fixed:
        net.encode = lambda ids: (net.proj(net.emb(ids).mean(1)).float() + 1e-4)
    opt = torch.optim.SGD(net.parameters(), lr=0.02)
    gen = torch.Generator().manual_seed(341)

    def step(i):
        a = torch.randint(1, 50, (8, 5), generator=gen)
        b = torch.randint(1, 50, (8, 5), generator=gen)
        if i == 2:
            b[6] = 0  # a pair whose second text is empty
        same = (torch.rand(8, generator=gen) > 0.5).float() * 2 - 1
        opt.zero_grad()
        score = net(a, b)
        loss = nn.functional.mse_loss(score.float(), same)
        loss.backward()
        opt.step()
        return loss

    return net, step
