"""Discrete survival: hazards by a sigmoid, survival as cumprod(1 - h), log-likelihood of event and
censoring; a hazard has become 1.

Source: well-known fault
"""

import torch
from torch import nn
from torch.nn import functional as F

META = {
    "origin_op": "log",
    "phase": "forward",
    "cause": "log-of-zero",
    "symptom": "loss-nan",
    "first_bad_step": 0,
    "n_steps": 2,
    "kind": "overflow",
    "loss_truth": 13.71991639,
}


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.z = nn.Parameter(torch.tensor([[-1.0, 0.5, 1.0], [0.2, 25.0, -0.3]]))

    def forward(self, fixed):
        event = torch.tensor([[0.0, 1.0, 0.0], [0.0, 0.0, 1.0]])
        at_risk = torch.tensor([[1.0, 1.0, 0.0], [1.0, 1.0, 1.0]])
        if fixed:
            logs = event * F.logsigmoid(self.z) + (1 - event) * F.logsigmoid(-self.z)
        else:
            h = torch.sigmoid(self.z)
            logs = event * torch.log(h) + (1 - event) * torch.log(1 - h)  # ORIGIN
        return -(at_risk * logs).sum() / 2


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
