"""Penalty of a router of experts on the square of log(sum exp(logits)), written out; logits of 95.

Source: well-known fault
"""

import torch
from torch import nn

META = {
    "origin_op": "exp",
    "phase": "forward",
    "cause": "exp-overflow",
    "symptom": "loss-nan",
    "first_bad_step": 0,
    "n_steps": 2,
    "kind": "overflow",
    "loss_truth": 4.666928908,
}


def z_loss(logits):
    return torch.log(torch.exp(logits).sum(-1)).square().mean()  # ORIGIN


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.router = nn.Linear(2, 3, bias=False)
        with torch.no_grad():
            self.router.weight.copy_(torch.tensor([[60.0, 35.0], [50.0, 44.0], [1.0, 2.0]]))

    def forward(self, fixed):
        logits = self.router(torch.tensor([[1.0, 1.0], [0.2, 0.1]]))
        if fixed:
            return torch.logsumexp(logits, -1).square().mean() * 1e-3
        return z_loss(logits) * 1e-3


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
