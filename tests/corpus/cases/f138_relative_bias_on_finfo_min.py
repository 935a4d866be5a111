"""Half-precision attention adds a learned relative bias to a finfo.min mask: the sum overflows to -inf, and a padding query sees nothing else."""

import torch
from torch import nn
from torch.nn import functional as F

META = {
    "origin_op": "add",
    "phase": "forward",
    "cause": "mask-overflow",
    "symptom": "loss-nan",
    "first_bad_step": 2,
    "n_steps": 5,
    "fix": "mask with half of finfo.min",
}


class RelAttention(nn.Module):
    def __init__(self, floor, dim=16, span=8):
        super().__init__()
        self.floor = floor
        self.qkv = nn.Linear(dim, 3 * dim)
        self.bias = nn.Parameter(torch.zeros(span, span))

    def forward(self, x, keep):
        q, k, v = self.qkv(x).chunk(3, -1)
        score = q @ k.transpose(1, 2) / 4.0
        mask = torch.zeros(keep.shape, dtype=x.dtype).masked_fill(~keep, self.floor)
        score = score + self.bias
        score = score + mask[:, None, :] * 1.0
        pad = torch.zeros_like(mask).masked_fill(~keep, self.floor)
        score = score + pad[:, :, None]  # ORIGIN
        return x + score.softmax(-1) @ v


class Encoder(nn.Module):
    def __init__(self, floor):
        super().__init__()
        self.inp, self.att, self.out = nn.Linear(5, 16), RelAttention(floor), nn.Linear(16, 2)

    def forward(self, x, keep):
        return self.out(self.att(self.inp(x), keep)).mean(1)


def build(fixed: bool = False):
    torch.manual_seed(235)
    net = Encoder(torch.finfo(torch.float16).min / 4 if fixed else torch.finfo(torch.float16).min).half()
    opt = torch.optim.SGD(net.parameters(), lr=5e-2)
    gen = torch.Generator().manual_seed(735)

    def step(i):
        opt.zero_grad()
        x = torch.randn(4, 8, 5, generator=gen)
        keep = torch.ones(4, 8, dtype=torch.bool)
        if i == 2:
            keep[1] = False
        loss = F.cross_entropy(net(x.half(), keep).float(), torch.tensor([0, 1, 0, 1]))
        loss.backward()
        opt.step()
        return loss

    return net, step
