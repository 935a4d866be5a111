"""Standard deviation of equal samples as a penalty.

Source: well-known fault (std of a constant)
"""
import math

import torch
from torch import nn

META = {
    "origin_op": "sqrt",
    "phase": "backward",
    "cause": "std-of-constant",
    "symptom": "grad-nan",
    "first_bad_step": 0,
    "n_steps": 2,
    "kind": "no-limit",
    "loss_truth": 0.1311487705,
    "bound": 0.2,
}


class Spread(nn.Module):
    def __init__(self):
        super().__init__()
        self.x = nn.Parameter(torch.tensor([[0.5, 0.5, 0.5], [0.1, 0.9, -0.4]]))

    def forward(self, fixed):
        if fixed:
            d = self.x - self.x.mean(1, keepdim=True)
            loss = 0.2 * torch.linalg.vector_norm(d, dim=1).sum() / math.sqrt(2)
        else:
            loss = 0.2 * torch.sqrt(self.x.var(1)).sum()  # ORIGIN
        return loss


def build(fixed: bool = False):
    net = Spread()
    opt = torch.optim.SGD(net.parameters(), lr=1e-3)

    def step(i):
        opt.zero_grad()
        loss = net(fixed)
        loss.backward()
        opt.step()
        return loss

    return net, step


def truth():
    x = torch.tensor([[0.5, 0.5, 0.5], [0.1, 0.9, -0.4]], dtype=torch.float64, requires_grad=True)
    d = x - x.mean(1, keepdim=True)
    loss = 0.2 * torch.linalg.vector_norm(d, dim=1).sum() / math.sqrt(2)
    dx_, = torch.autograd.grad(loss, [x])
    dx_[0] = float("nan")
    return {"x": dx_}
