"""Contrastive learning with dropout positives under fp16 autocast: raw dot products over temperature 0.05 overflow once the norms have grown."""

import torch
from torch import nn

META = {
    "origin_op": "div",
    "also_ops": ("mm",),
    "phase": "forward",
    "cause": "dtype-overflow",
    "symptom": "loss-nan",
    "chaotic": True,
    "n_steps": 60,
    "fix": "L2-normalise the embeddings, or compute the scores in float32",
}


class Encoder(nn.Module):
    def __init__(self, vocab=200, dim=48):
        super().__init__()
        self.emb = nn.Embedding(vocab, dim)
        self.mix = nn.Sequential(nn.Linear(dim, dim), nn.GELU(), nn.Dropout(0.4), nn.Linear(dim, dim))

    def forward(self, ids):
        return self.mix(self.emb(ids)).mean(1)


def scores(a, b, temperature, normalise):
    if normalise:
        a, b = nn.functional.normalize(a.float(), dim=-1), nn.functional.normalize(b.float(), dim=-1)
    return a @ b.T / temperature  # ORIGIN


def build(fixed: bool = False):
    torch.manual_seed(405)
    net = Encoder()
    opt = torch.optim.Adam(net.parameters(), lr=0.1)
    gen = torch.Generator().manual_seed(505)

    def step(i):
        ids = torch.randint(0, 200, (16, 8), generator=gen)
        opt.zero_grad()
        with torch.autocast("cpu", dtype=torch.float16):
            sim = scores(net(ids), net(ids), 0.05, fixed)
        loss = nn.functional.cross_entropy(sim.float(), torch.arange(16))
        loss.backward()
        opt.step()
        return loss

    return net, step
