"""Renyi divergence log(sum p^a r^(1 - a)) / (a - 1) with the order started at 1: Kullback and Leibler's.

Source: well-known fault (order of the divergence as a parameter)
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
    "loss_truth": 0.0003420320452,
}


class Divergence(nn.Module):
    def __init__(self):
        super().__init__()
        self.a = nn.Parameter(torch.tensor(1.0))

    def forward(self, fixed):
        p = torch.tensor([0.25, 0.5, 0.25])
        r = torch.tensor([0.5, 0.125, 0.375])
        if fixed:
            lr = torch.log(p / r)
            kl = (p * lr).sum()
            d = kl + (self.a - 1) / 2 * ((p * lr**2).sum() - kl**2)
        else:
            d = torch.log((p**self.a * r ** (1 - self.a)).sum()) / (self.a - 1)  # ORIGIN
        loss = (d - 0.4).pow(2)
        return loss


def build(fixed: bool = False):
    net = Divergence()
    opt = torch.optim.SGD(net.parameters(), lr=1e-3)

    def step(i):
        opt.zero_grad()
        loss = net(fixed)
        loss.backward()
        opt.step()
        return loss

    return net, step


def truth():
    a = torch.tensor(1.0, dtype=torch.float64, requires_grad=True)
    p = torch.tensor([0.25, 0.5, 0.25])
    r = torch.tensor([0.5, 0.125, 0.375])
    lr = torch.log(p / r)
    kl = (p * lr).sum()
    d = kl + (a - 1) / 2 * ((p * lr**2).sum() - kl**2)
    loss = (d - 0.4).pow(2)
    da_, = torch.autograd.grad(loss, [a])
    return {"a": da_}
