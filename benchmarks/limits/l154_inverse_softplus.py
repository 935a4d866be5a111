"""Inverse softplus log(e^y - 1) at y = 120.

Source: well-known fault (initialising positive parameters)
"""
import torch
from torch import nn

META = {
    "origin_op": "exp",
    "phase": "forward",
    "cause": "exp-overflow",
    "symptom": "loss-inf",
    "first_bad_step": 0,
    "n_steps": 2,
    "kind": "overflow",
    "loss_truth": 1.481364368,
}


class Inverse(nn.Module):
    def __init__(self):
        super().__init__()
        self.y = nn.Parameter(torch.tensor([120.0, 0.8]))

    def forward(self, fixed):
        if fixed:
            raw = self.y + torch.log(-torch.expm1(-self.y))
        else:
            raw = torch.log(torch.exp(self.y) - 1)  # ORIGIN
        loss = (raw * torch.tensor([0.01, 1.0])).pow(2).sum()
        return loss


def build(fixed: bool = False):
    net = Inverse()
    opt = torch.optim.SGD(net.parameters(), lr=1e-4)

    def step(i):
        opt.zero_grad()
        loss = net(fixed)
        loss.backward()
        opt.step()
        return loss

    return net, step


def truth():
    y = torch.tensor([120.0, 0.8], dtype=torch.float64, requires_grad=True)
    raw = y + torch.log(-torch.expm1(-y))
    loss = (raw * torch.tensor([0.01, 1.0])).pow(2).sum()
    dy_, = torch.autograd.grad(loss, [y])
    return {"y": dy_}
