"""Gibbs kernel exp(-C / 0.005) scaled to the row sums of a transport plan; all costs of a row are
above 1.

Source: well-known fault
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
    "loss_truth": 0.3667152183,
}


def plan(cost, r, eps):
    kernel = torch.exp(-cost / eps)
    u = r / kernel.sum(1)  # ORIGIN
    return u[:, None] * kernel


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.x = nn.Parameter(torch.tensor([0.0, 1.0]))

    def forward(self, fixed):
        y = torch.tensor([0.9, 1.01, 1.02])
        cost = (self.x[:, None] - y[None, :]).abs()
        r = torch.tensor([0.4, 0.6])
        if fixed:
            p = r[:, None] * torch.softmax(-cost / 0.005, 1)
        else:
            p = plan(cost, r, 0.005)
        return (p * cost).sum()


def build(fixed: bool = False):
    net = Net()
    opt = torch.optim.SGD(net.parameters(), lr=1e-6)

    def step(i):
        opt.zero_grad()
        loss = net(fixed)
        loss.backward()
        opt.step()
        return loss

    return net, step


def truth():
    net, step = build(True)
    net.double()
    step(0)
    true = {name: p.grad for name, p in net.named_parameters()}
    return true
