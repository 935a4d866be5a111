"""Pretrained word vectors were normalised in numpy; a zero vector became NaN and sits in the embedding table."""

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

META = {
    "origin_op": "embedding",
    "also_ops": ("copy_", "mean"),
    "phase": "init",
    "cause": "poisoned-parameter",
    "symptom": "loss-nan",
    "first_bad_step": 0,
    "n_steps": 3,
    "fix": "replace NaN rows by zero",
}


def vectors(clean):
    rng = np.random.default_rng(3)
    v = rng.normal(size=(25, 8)).astype("float32")
    v[6] = 0.0
    with np.errstate(invalid="ignore"):
        v = v / np.linalg.norm(v, axis=1, keepdims=True)  # DATA
    return torch.from_numpy(np.nan_to_num(v) if clean else v)


class Bag(nn.Module):
    def __init__(self, table):
        super().__init__()
        self.emb = nn.Embedding.from_pretrained(table, freeze=False)
        self.out = nn.Linear(8, 2)

    def forward(self, ids):
        return self.out(self.emb(ids).mean(1))  # ORIGIN


def build(fixed: bool = False):
    torch.manual_seed(312)
    net = Bag(vectors(fixed))
    opt = torch.optim.Adam(net.parameters(), lr=1e-3)
    gen = torch.Generator().manual_seed(812)

    def step(i):
        opt.zero_grad()
        ids = torch.randint(0, 25, (8, 5), generator=gen)
        ids[0, 0] = 6
        loss = F.cross_entropy(net(ids), torch.arange(8) % 2)
        loss.backward()
        opt.step()
        return loss

    return net, step
