"""Softplus with a sharpness, log(1 + exp(b x)) / b: b x is 150.

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
    "loss_truth": 1.179919434,
}


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.x = nn.Parameter(torch.tensor([3.0, -0.5, 0.1]))
        self.b = nn.Parameter(torch.tensor(50.0))

    def forward(self, fixed):
        if fixed:
            y = torch.logaddexp(self.b * self.x, torch.zeros(())) / self.b
        else:
            y = torch.log(1 + torch.exp(self.b * self.x)) / self.b  # ORIGIN
        return (y - torch.tensor([2.0, 0.3, 0.4])).pow(2).sum()


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
