"""Attention scores get finfo.min in masked places and are divided by a temperature of 0.5 afterwards: padding rows become -inf throughout."""

import torch
from torch import nn
from torch.nn import functional as F

META = {
    "origin_op": "div",
    "phase": "forward",
    "cause": "mask-overflow",
    "symptom": "loss-nan",
    "first_bad_step": 2,
    "n_steps": 5,
    "fix": "divide before masking",
}


class Att(nn.Module):
    def __init__(self, first, temp=0.5):
        super().__init__()
        self.first, self.temp = first, temp
        self.qk = nn.Linear(6, 12)
        self.out = nn.Linear(6, 3)

    def forward(self, x, keep):
        q, k = self.qk(x).chunk(2, -1)
        score = q @ k.transpose(1, 2)
        if self.first:
            score = score / self.temp
        low = torch.finfo(score.dtype).min
        score = score.masked_fill(~keep[:, None, :], low)
        if not self.first:
            score = score / self.temp  # ORIGIN
        return self.out(torch.softmax(score, -1) @ x).mean(1)


def build(fixed: bool = False):
    torch.manual_seed(325)
    net = Att(fixed)
    opt = torch.optim.Adam(net.parameters(), lr=1e-3)
    gen = torch.Generator().manual_seed(825)

    def step(i):
        opt.zero_grad()
        x = torch.randn(5, 6, 6, generator=gen)
        keep = torch.rand(5, 6, generator=gen) < 0.7
        keep[:, 0] = True
        if i == 2:
            keep[3] = False
        loss = F.cross_entropy(net(x, keep), torch.arange(5) % 3)
        loss.backward()
        opt.step()
        return loss

    return net, step
