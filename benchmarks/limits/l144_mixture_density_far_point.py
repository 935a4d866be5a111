"""Log-likelihood of a two-component mixture at a point 30 sigma away: log(0).

Source: well-known fault (mixture density networks)
"""
import math

import torch
from torch import nn

META = {
    "origin_op": "log",
    "phase": "forward",
    "cause": "log-of-zero",
    "symptom": "loss-inf",
    "first_bad_step": 0,
    "n_steps": 2,
    "kind": "overflow",
    "loss_truth": 131.2042295,
}


class Mixture(nn.Module):
    def __init__(self):
        super().__init__()
        self.mu = nn.Parameter(torch.tensor([0.0, 2.0]))

    def forward(self, fixed):
        y = torch.tensor([30.0, 0.5, 1.0])
        if fixed:
            like = torch.logaddexp(math.log(0.4) - (y - self.mu[0]) ** 2 / 2, math.log(0.6) - (y - self.mu[1]) ** 2 / 2)
        else:
            like = torch.log(0.4 * torch.exp(-((y - self.mu[0]) ** 2) / 2) + 0.6 * torch.exp(-((y - self.mu[1]) ** 2) / 2))  # ORIGIN
        loss = -like.mean()
        return loss


def build(fixed: bool = False):
    net = Mixture()
    opt = torch.optim.SGD(net.parameters(), lr=1e-4)

    def step(i):
        opt.zero_grad()
        loss = net(fixed)
        loss.backward()
        opt.step()
        return loss

    return net, step


def truth():
    mu = torch.tensor([0.0, 2.0], dtype=torch.float64, requires_grad=True)
    y = torch.tensor([30.0, 0.5, 1.0])
    like = torch.logaddexp(math.log(0.4) - (y - mu[0]) ** 2 / 2, math.log(0.6) - (y - mu[1]) ** 2 / 2)
    loss = -like.mean()
    dmu_, = torch.autograd.grad(loss, [mu])
    return {"mu": dmu_}
