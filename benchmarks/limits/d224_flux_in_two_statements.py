"""Flux of two helpers on two lines, each 0 / 0 at zero voltage.

Source: well-known fault (ion channel models)
"""
import torch
from torch import nn

META = {
    "origins": 2,
    "origin_op": "div",
    "phase": "forward",
    "cause": "div-by-zero",
    "symptom": "loss-nan",
    "first_bad_step": 0,
    "n_steps": 2,
    "kind": "two",
    "loss_truth": 0.6668491896,
}


class Channel(nn.Module):
    def __init__(self):
        super().__init__()
        self.v = nn.Parameter(torch.tensor([0.0, 0.6]))

    def forward(self, fixed):
        if fixed:
            small = torch.where(self.v.abs() < 1e-2, torch.ones_like(self.v), self.v)
            inward = torch.where(self.v.abs() < 1e-2, 1 - self.v / 2 + self.v**2 / 12, small / torch.expm1(small))
            outward = inward + self.v
        else:
            inward = self.v / (torch.exp(self.v) - 1)  # ORIGIN
            outward = self.v / (1 - torch.exp(-self.v))  # ORIGIN
        loss = (1.5 * inward - 0.7 * outward).pow(2).sum()
        return loss


def build(fixed: bool = False):
    net = Channel()
    opt = torch.optim.SGD(net.parameters(), lr=1e-3)

    def step(i):
        opt.zero_grad()
        loss = net(fixed)
        loss.backward()
        opt.step()
        return loss

    return net, step


def truth():
    v = torch.tensor([0.0, 0.6], dtype=torch.float64, requires_grad=True)
    small = torch.where(v.abs() < 1e-2, torch.ones_like(v), v)
    inward = torch.where(v.abs() < 1e-2, 1 - v / 2 + v**2 / 12, small / torch.expm1(small))
    outward = inward + v
    loss = (1.5 * inward - 0.7 * outward).pow(2).sum()
    dv_, = torch.autograd.grad(loss, [v])
    return {"v": dv_}
