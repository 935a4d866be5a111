"""The same quotient written twice on one line, value and square.

Source: well-known fault (variance of a box average in frequency space)
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
    "loss_truth": 3.568301355,
}


class Box(nn.Module):
    def __init__(self):
        super().__init__()
        self.k = nn.Parameter(torch.tensor([0.0, 0.9, 2.0]))

    def forward(self, fixed):
        if fixed:
            spread = torch.sinc(self.k / math.pi) - torch.sinc(self.k / math.pi) ** 2 + self.k
        else:
            spread = torch.sin(self.k) / self.k - (torch.sin(self.k) / self.k) ** 2 + self.k  # ORIGIN
        loss = (spread - 0.5).pow(2).sum()
        return loss


def build(fixed: bool = False):
    net = Box()
    opt = torch.optim.SGD(net.parameters(), lr=1e-3)

    def step(i):
        opt.zero_grad()
        loss = net(fixed)
        loss.backward()
        opt.step()
        return loss

    return net, step


def truth():
    k = torch.tensor([0.0, 0.9, 2.0], dtype=torch.float64, requires_grad=True)
    spread = torch.sinc(k / math.pi) - torch.sinc(k / math.pi) ** 2 + k
    loss = (spread - 0.5).pow(2).sum()
    dk_, = torch.autograd.grad(loss, [k])
    return {"k": dk_}
