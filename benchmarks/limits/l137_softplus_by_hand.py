"""Noise level log(1 + exp(s)) of a heteroscedastic head whose score is 120.

Source: well-known fault (softplus by hand)
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
    "loss_truth": 1.679567224,
}


class Head(nn.Module):
    def __init__(self):
        super().__init__()
        self.s = nn.Parameter(torch.tensor([120.0, 0.5, -3.0]))

    def forward(self, fixed):
        if fixed:
            sigma = nn.functional.softplus(self.s)
        else:
            sigma = torch.log(1 + torch.exp(self.s))  # ORIGIN
        loss = (sigma * torch.tensor([0.01, 0.5, 1.0])).pow(2).sum()
        return loss


def build(fixed: bool = False):
    net = Head()
    opt = torch.optim.SGD(net.parameters(), lr=1e-3)

    def step(i):
        opt.zero_grad()
        loss = net(fixed)
        loss.backward()
        opt.step()
        return loss

    return net, step


def truth():
    s = torch.tensor([120.0, 0.5, -3.0], dtype=torch.float64, requires_grad=True)
    sigma = nn.functional.softplus(s)
    loss = (sigma * torch.tensor([0.01, 0.5, 1.0])).pow(2).sum()
    ds_, = torch.autograd.grad(loss, [s])
    return {"s": ds_}
