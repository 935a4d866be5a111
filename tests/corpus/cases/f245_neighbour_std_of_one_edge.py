"""Standard deviation over neighbours as sqrt(|E[x^2] - E[x]^2|): a node with one neighbour has variance zero."""

import torch
from torch import nn

META = {
    "origin_op": "sqrt",
    "phase": "backward",
    "cause": "sqrt-at-zero",
    "also_causes": ("std-of-constant",),
    "symptom": "grad-nan",
    "first_bad_step": 1,
    "n_steps": 3,
    "fix": "add an epsilon under the root",
}


def scatter_mean(m, dst, n):
    cnt = torch.zeros(n, 1).index_add_(0, dst, torch.ones(len(dst), 1))
    return torch.zeros(n, m.shape[1]).index_add(0, dst, m) / cnt.clamp(min=1)


class StdAggregation(nn.Module):
    def __init__(self, eps=0.0):
        super().__init__()
        self.eps = eps

    def forward(self, m, dst, n):
        var = (scatter_mean(m * m, dst, n) - scatter_mean(m, dst, n).pow(2)).abs()
        return torch.sqrt(var + self.eps)  # ORIGIN


class Net(nn.Module):
    def __init__(self, fixed):
        super().__init__()
        self.msg, self.agg, self.out = nn.Linear(4, 6), StdAggregation(1e-5 if fixed else 0.0), nn.Linear(6, 1)

    def forward(self, x, src, dst):
        return self.out(self.agg(self.msg(x)[src], dst, len(x)))


def build(fixed: bool = False):
    torch.manual_seed(691)
    net = Net(fixed)
    opt = torch.optim.SGD(net.parameters(), lr=1e-3)
    gen = torch.Generator().manual_seed(696)

    def step(i):
        opt.zero_grad()
        x = torch.randn(6, 4, generator=gen)
        src = torch.arange(6).repeat(3)
        dst = torch.cat([torch.arange(6), (torch.arange(6) + 1) % 6, (torch.arange(6) + 2) % 6])
        if i == 1:
            keep = dst != 3
            keep[3] = True
            src, dst = src[keep], dst[keep]
        loss = net(x, src, dst).square().mean()
        loss.backward()
        opt.step()
        return loss

    return net, step
