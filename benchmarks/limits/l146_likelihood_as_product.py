"""Likelihood as a product of 60 probabilities of 0.1: log(0) in float32.

Source: well-known fault (log of a product)
"""
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
    "loss_truth": 145.6551056,
}


class Chain(nn.Module):
    def __init__(self):
        super().__init__()
        self.s = nn.Parameter(torch.tensor([0.0, 0.5]))

    def forward(self, fixed):
        steps = torch.linspace(0.0, 1.0, 60)[:, None]
        if fixed:
            loss = -torch.log(0.1 * torch.exp(-self.s * steps)).sum(0).mean()
        else:
            loss = -torch.log((0.1 * torch.exp(-self.s * steps)).prod(0)).mean()  # ORIGIN
        return loss


def build(fixed: bool = False):
    net = Chain()
    opt = torch.optim.SGD(net.parameters(), lr=1e-4)

    def step(i):
        opt.zero_grad()
        loss = net(fixed)
        loss.backward()
        opt.step()
        return loss

    return net, step


def truth():
    s = torch.tensor([0.0, 0.5], dtype=torch.float64, requires_grad=True)
    steps = torch.linspace(0.0, 1.0, 60)[:, None]
    loss = -torch.log(0.1 * torch.exp(-s * steps)).sum(0).mean()
    ds_, = torch.autograd.grad(loss, [s])
    return {"s": ds_}
