"""Precision 1 / exp(s)^2 of a task's noise times its loss, with log-scales of 50 for a loss that is as large.

Source: well-known fault
"""

import torch
from torch import nn

META = {
    "origin_op": "pow",
    "phase": "forward",
    "cause": "exp-overflow",
    "symptom": "loss-nan",
    "first_bad_step": 0,
    "n_steps": 2,
    "kind": "overflow",
    "loss_truth": 50.32802712,
}


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.log_sigma = nn.Parameter(torch.tensor([50.0, 0.2]))
        self.pred = nn.Parameter(torch.tensor([3e21, 0.5]))

    def forward(self, fixed):
        error = self.pred - torch.tensor([1e21, 0.1]).to(self.pred)
        sigma = torch.exp(self.log_sigma)
        if fixed:
            scaled = (error / sigma) ** 2
        else:
            scaled = error**2 / sigma**2  # ORIGIN
        return (0.5 * scaled).sum() + self.log_sigma.sum()


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
