"""Entropy of a mixed strategy by methods, mul, log and neg; one move is never played.

Source: well-known fault
"""

import torch
from torch import nn

META = {
    "origin_op": "log",
    "phase": "forward",
    "cause": "log-of-zero",
    "symptom": "loss-nan",
    "first_bad_step": 0,
    "n_steps": 2,
    "kind": "one-sided-infinite",
    "loss_truth": 0.9110864302,
}


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.p = nn.Parameter(torch.tensor([0.7, 0.3, 0.0]))

    def forward(self, fixed):
        if fixed:
            H = torch.special.entr(self.p + 1e-30).sum()
        else:
            H = self.p.mul(self.p.log()).sum().neg()  # ORIGIN
        payoff = self.p @ torch.tensor([1.0, 0.5, 2.0])
        return payoff + 0.1 * H


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
    true["p"][2] = float("inf")
    return true
