"""Boltzmann weights of energies near 300 kT: every weight is 0, 0 / 0.

Source: well-known fault (replica weights without a shift)
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
    "kind": "overflow",
    "loss_truth": 0.6760374598,
}


class Boltzmann(nn.Module):
    def __init__(self):
        super().__init__()
        self.e = nn.Parameter(torch.tensor([300.0, 301.0, 302.5]))

    def forward(self, fixed):
        if fixed:
            w = torch.softmax(-self.e, 0)
        else:
            w = torch.exp(-self.e) / torch.exp(-self.e).sum()  # ORIGIN
        loss = (w * torch.tensor([1.0, -0.5, 2.0])).sum()
        return loss


def build(fixed: bool = False):
    net = Boltzmann()
    opt = torch.optim.SGD(net.parameters(), lr=1e-3)

    def step(i):
        opt.zero_grad()
        loss = net(fixed)
        loss.backward()
        opt.step()
        return loss

    return net, step


def truth():
    e = torch.tensor([300.0, 301.0, 302.5], dtype=torch.float64, requires_grad=True)
    w = torch.softmax(-e, 0)
    loss = (w * torch.tensor([1.0, -0.5, 2.0])).sum()
    de_, = torch.autograd.grad(loss, [e])
    return {"e": de_}
