"""Annuity factor r / (1 - (1 + r)^-n) at an interest of 0: 1 / n, slope (n + 1) / (2 n).

Source: well-known fault (loan instalments without interest)
"""
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
    "loss_truth": 0.03207087447,
}


class Loan(nn.Module):
    def __init__(self):
        super().__init__()
        self.r = nn.Parameter(torch.tensor([0.0, 0.04]))

    def forward(self, fixed):
        if fixed:
            v = 1 / (1 + self.r)
            rate = 1 / sum(v**k for k in range(1, 13))
        else:
            rate = self.r / (1 - (1 + self.r) ** -12)  # ORIGIN
        loss = (rate * 10 - 1).pow(2).sum()
        return loss


def build(fixed: bool = False):
    net = Loan()
    opt = torch.optim.SGD(net.parameters(), lr=1e-4)

    def step(i):
        opt.zero_grad()
        loss = net(fixed)
        loss.backward()
        opt.step()
        return loss

    return net, step


def truth():
    r = torch.tensor([0.0, 0.04], dtype=torch.float64, requires_grad=True)
    v = 1 / (1 + r)
    rate = 1 / sum(v**k for k in range(1, 13))
    loss = (rate * 10 - 1).pow(2).sum()
    dr_, = torch.autograd.grad(loss, [r])
    return {"r": dr_}
