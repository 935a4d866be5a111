"""A layer norm written by hand runs in half: its epsilon 1e-8 is zero there, and a padded row divides zero by zero."""

import torch
from torch import nn

META = {
    "origin_op": "div",
    "also_ops": ("add", "sqrt"),
    "phase": "forward",
    "cause": "eps-underflow",
    "symptom": "loss-nan",
    "first_bad_step": 3,
    "n_steps": 6,
    "fix": "an epsilon of 1e-3, or nn.LayerNorm, which computes in float32",
}


class Norm(nn.Module):
    def __init__(self, dim, eps):
        super().__init__()
        self.eps = eps
        self.gain, self.bias = nn.Parameter(torch.ones(dim)), nn.Parameter(torch.zeros(dim))

    def forward(self, h):
        centred = h - h.mean(-1, keepdim=True)
        var = centred.square().mean(-1, keepdim=True)
        return self.gain * (centred / torch.sqrt(var + self.eps)) + self.bias  # ORIGIN


class Mixer(nn.Module):
    def __init__(self, eps, dim=16):
        super().__init__()
        self.emb = nn.Embedding(20, dim, padding_idx=0)
        self.norm1, self.ff1 = Norm(dim, eps), nn.Sequential(nn.Linear(dim, 24), nn.GELU(), nn.Linear(24, dim))
        self.head = nn.Linear(dim, 4)

    def forward(self, ids):
        h = self.emb(ids)
        h = h + self.ff1(self.norm1(h))
        return self.head(h.mean(1))


def build(fixed: bool = False):
    torch.manual_seed(62)
    net = Mixer(1e-3 if fixed else 1e-8).half()
    opt = torch.optim.SGD(net.parameters(), lr=0.02)
    gen = torch.Generator().manual_seed(162)

    def step(i):
        ids = torch.randint(1, 20, (6, 8), generator=gen)
        if i == 3:
            ids[4, 5:] = 0
        y = torch.randint(0, 4, (6,), generator=gen)
        opt.zero_grad()
        loss = nn.functional.cross_entropy(net(ids).float(), y)
        loss.backward()
        opt.step()
        return loss

    return net, step
