"""Sinc kernel mapped over samples by torch.vmap, with one sample at the origin.

Source: well-known fault (per-sample functions without a branch)
"""
import math

import torch
from torch import nn

META = {
    "origin_op": "div",
    "phase": "forward",
    "cause": "div-by-zero",
    "symptom": "loss-nan",
    "first_bad_step": 0,
    "n_steps": 2,
    "kind": "removable",
    "loss_truth": 0.6091881135,
}


class Kernel(nn.Module):
    def __init__(self):
        super().__init__()
        self.r = nn.Parameter(torch.tensor([[0.0, 0.5], [1.0, 2.0]]))

    def forward(self, fixed):
        if fixed:
            k = torch.sinc(self.r / math.pi)
        else:
            k = torch.vmap(lambda r: torch.sin(r) / r)(self.r)  # ORIGIN
        loss = (k.prod(1) - 0.2).pow(2).sum()
        return loss


def build(fixed: bool = False):
    net = Kernel()
    opt = torch.optim.SGD(net.parameters(), lr=1e-3)

    def step(i):
        opt.zero_grad()
        loss = net(fixed)
        loss.backward()
        opt.step()
        return loss

    return net, step


def truth():
    r = torch.tensor([[0.0, 0.5], [1.0, 2.0]], dtype=torch.float64, requires_grad=True)
    k = torch.sinc(r / math.pi)
    loss = (k.prod(1) - 0.2).pow(2).sum()
    dr_, = torch.autograd.grad(loss, [r])
    return {"r": dr_}
