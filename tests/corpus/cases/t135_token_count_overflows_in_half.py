"""The loss is divided by the number of tokens, counted in half precision: past 65504 the count is infinite and the loss zero."""

import torch
from torch import nn

META = {
    "origin_op": "sum",
    "phase": "forward",
    "cause": "dtype-overflow",
    "symptom": "silent-underflow",
    "first_bad_step": 2,
    "n_steps": 4,
    "watch": "grad:weight",
    "fix": "count in integers or float32",
}


def build(fixed: bool = False):
    torch.manual_seed(635)
    net = nn.Linear(2, 1, bias=False)
    opt = torch.optim.SGD(net.parameters(), lr=0.1)
    gen = torch.Generator().manual_seed(735)

    def step(i):
        rows = 200 if i < 2 else 300
        x = torch.randn(rows, 256, 2, generator=gen)
        y = x.sum(-1)
        mask = torch.ones(rows, 256, dtype=torch.float32 if fixed else torch.float16)
        opt.zero_grad()
        error = (net(x).squeeze(-1) - y).square()
        count = mask.sum()  # ORIGIN
        loss = (error * mask).sum() / count
        loss.backward()
        opt.step()
        return loss

    return net, step
