"""Kinetic energy (sqrt(1 + x) - 1) / x in units of its classical value, at rest.

Source: well-known fault (cancellation and 0 / 0 at rest)
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
    "loss_truth": 0.3286308682,
}


class Energy(nn.Module):
    def __init__(self):
        super().__init__()
        self.x = nn.Parameter(torch.tensor([0.0, 0.8, 2.5]))

    def forward(self, fixed):
        if fixed:
            ratio = 1 / (torch.sqrt(1 + self.x) + 1)
        else:
            ratio = (torch.sqrt(1 + self.x) - 1) / self.x  # ORIGIN
        loss = (ratio - 0.1).pow(2).sum()
        return loss


def build(fixed: bool = False):
    net = Energy()
    opt = torch.optim.SGD(net.parameters(), lr=1e-3)

    def step(i):
        opt.zero_grad()
        loss = net(fixed)
        loss.backward()
        opt.step()
        return loss

    return net, step


def truth():
    x = torch.tensor([0.0, 0.8, 2.5], dtype=torch.float64, requires_grad=True)
    ratio = 1 / (torch.sqrt(1 + x) + 1)
    loss = (ratio - 0.1).pow(2).sum()
    dx_, = torch.autograd.grad(loss, [x])
    return {"x": dx_}
