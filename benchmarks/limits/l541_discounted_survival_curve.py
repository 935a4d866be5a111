"""Log of a cumulative product of survival rates: 40 rates of 0.05 underflow.

Source: well-known fault
"""
import torch
from torch import nn
from torch.nn import functional as F

META = {
    "origin_op": "log",
    "phase": "forward",
    "cause": "log-of-zero",
    "symptom": "loss-inf",
    "first_bad_step": 0,
    "n_steps": 2,
    "kind": "overflow",
    "loss_truth": 122.0234066,
}


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.logit = nn.Parameter(torch.linspace(-3.5, -2.5, 40))

    def forward(self, fixed):
        p = torch.sigmoid(self.logit)
        if fixed:
            return -F.logsigmoid(self.logit).cumsum(0)[-1]
        curve = torch.cumprod(p, dim=0)
        return -curve[-1].log()  # ORIGIN


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
