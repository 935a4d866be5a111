"""Binomial coefficient from exp(lgamma) / exp(lgamma): 60! overflows.

Source: well-known fault (combinatorics through gamma functions)
"""
import torch
from torch import nn

META = {
    "origin_op": "exp",
    "phase": "forward",
    "cause": "exp-overflow",
    "symptom": "loss-nan",
    "first_bad_step": 0,
    "n_steps": 2,
    "kind": "overflow",
    "loss_truth": 5.54,
}


class Counts(nn.Module):
    def __init__(self):
        super().__init__()
        self.n = nn.Parameter(torch.tensor([60.0, 5.0]))

    def forward(self, fixed):
        if fixed:
            c = torch.exp(torch.lgamma(self.n + 1) - torch.lgamma(self.n - 1))
        else:
            c = torch.exp(torch.lgamma(self.n + 1)) / torch.exp(torch.lgamma(self.n - 1))  # ORIGIN
        loss = (c * torch.tensor([1e-3, 0.1])).sum()
        return loss


def build(fixed: bool = False):
    net = Counts()
    opt = torch.optim.SGD(net.parameters(), lr=1e-4)

    def step(i):
        opt.zero_grad()
        loss = net(fixed)
        loss.backward()
        opt.step()
        return loss

    return net, step


def truth():
    n = torch.tensor([60.0, 5.0], dtype=torch.float64, requires_grad=True)
    c = torch.exp(torch.lgamma(n + 1) - torch.lgamma(n - 1))
    loss = (c * torch.tensor([1e-3, 0.1])).sum()
    dn_, = torch.autograd.grad(loss, [n])
    return {"n": dn_}
