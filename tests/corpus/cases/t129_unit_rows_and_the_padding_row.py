"""Embeddings are put back on the unit sphere after each step; the padding row is zero by design."""

import torch
from torch import nn

META = {
    "origin_op": "div_",
    "also_ops": ("div",),
    "phase": "optimizer",
    "also_phase": "forward",
    "cause": "div-by-zero",
    "also_causes": ("norm-at-zero",),
    "symptom": "param-nan",
    "first_bad_step": 0,
    "n_steps": 3,
    "fix": "clamp the norms",
}


class Hyper(nn.Module):
    def __init__(self):
        super().__init__()
        self.emb = nn.Embedding(30, 8, padding_idx=0)
        self.head = nn.Linear(8, 4)

    def forward(self, ids):
        return self.head(self.emb(ids).sum(1))

    @torch.no_grad()
    def project(self, least):
        w = self.emb.weight
        w.div_(w.norm(dim=1, keepdim=True).clamp(min=least))  # ORIGIN


def build(fixed: bool = False):
    torch.manual_seed(629)
    net = Hyper()
    opt = torch.optim.Adam(net.parameters(), lr=1e-2)
    gen = torch.Generator().manual_seed(729)

    def step(i):
        ids = torch.randint(1, 30, (16, 5), generator=gen)
        ids[:, 3:] = 0
        opt.zero_grad()
        loss = nn.functional.cross_entropy(net(ids), ids[:, 0] % 4)
        loss.backward()
        opt.step()
        net.project(1e-6 if fixed else 0.0)
        return loss

    return net, step
