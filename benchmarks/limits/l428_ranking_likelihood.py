"""Plackett-Luce likelihood of a ranking: log of the cumulative sum of exp(100).

Source: well-known fault
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
    "loss_truth": 0.4401896986,
}


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.s = nn.Parameter(torch.tensor([101.0, 100.0, 3.0, 1.0]))

    def forward(self, fixed):
        if fixed:
            loss = (self.s.flip(0).logcumsumexp(0).flip(0) - self.s).sum()
        else:
            rest = torch.exp(self.s).flip(0).cumsum(0).flip(0)  # ORIGIN
            loss = (torch.log(rest) - self.s).sum()
        return loss


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
    net, _ = build(True)
    net.double()
    found = torch.autograd.grad(net(True), list(net.parameters()))
    true = {n: g for (n, _), g in zip(net.named_parameters(), found)}
    return true
