"""Positions are accumulated by cumsum in half precision along a long recording, beyond 65504."""

import torch
from torch import nn
from torch.nn import functional as F

META = {
    "origin_op": "cumsum",
    "phase": "forward",
    "cause": "dtype-overflow",
    "symptom": "loss-inf",
    "first_bad_step": 2,
    "n_steps": 5,
    "fix": "accumulate in float32",
}


class Walk(nn.Module):
    def __init__(self, wide):
        super().__init__()
        self.wide = wide
        self.step = nn.Linear(3, 1)
        self.out = nn.Linear(1, 1)

    def forward(self, x):
        v = self.step(x).squeeze(-1) * 40
        v = v.float() if self.wide else v
        pos = torch.cumsum(v, 1)  # ORIGIN
        return torch.log1p(pos.abs()).to(x.dtype)[:, -1]


def build(fixed: bool = False):
    torch.manual_seed(412)
    net = Walk(fixed).half()
    opt = torch.optim.SGD(net.parameters(), lr=1e-3)
    gen = torch.Generator().manual_seed(912)

    def step(i):
        opt.zero_grad()
        x = torch.randn(4, 400, 3, generator=gen)
        if i == 2:
            x[1] = 30.0 * torch.sign(net.step.weight.data.float())
        loss = F.mse_loss(net(x.half()).float(), torch.ones(4))
        loss.backward()
        opt.step()
        return loss

    return net, step
