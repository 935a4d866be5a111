"""RMSNorm by hand without an epsilon over embeddings whose padding row is zero."""

import torch
from torch import nn
from torch.nn import functional as F

META = {
    "origin_op": "rsqrt",
    "also_ops": ("mul",),
    "phase": "forward",
    "cause": "norm-at-zero",
    "also_causes": ("div-by-zero", "sqrt-at-zero"),
    "symptom": "loss-nan",
    "first_bad_step": 2,
    "n_steps": 4,
    "fix": "add the epsilon",
}


class RMSNorm(nn.Module):
    def __init__(self, dim, eps):
        super().__init__()
        self.weight, self.eps = nn.Parameter(torch.ones(dim)), eps

    def forward(self, x):
        return self.weight * (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.eps))  # ORIGIN


class Tagger(nn.Module):
    def __init__(self, eps):
        super().__init__()
        self.tok = nn.Embedding(20, 8, padding_idx=0)
        self.norm, self.head = RMSNorm(8, eps), nn.Linear(8, 4)

    def forward(self, ids):
        return self.head(self.norm(self.tok(ids)))


def build(fixed: bool = False):
    torch.manual_seed(998)
    net = Tagger(1e-6 if fixed else 0.0)
    opt = torch.optim.Adam(net.parameters(), lr=1e-3)
    gen = torch.Generator().manual_seed(1003)

    def step(i):
        opt.zero_grad()
        ids = torch.randint(1, 20, (3, 6), generator=gen)
        if i == 2:
            ids[2, 4:] = 0
        loss = F.cross_entropy(net(ids).flatten(0, 1), ids.flatten() % 4)
        loss.backward()
        opt.step()
        return loss

    return net, step
