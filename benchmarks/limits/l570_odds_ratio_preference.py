"""Odds-ratio preference: log(p / (1 - p)) of a mean log-likelihood that has reached 0.

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
    "loss_truth": 3.946425911,
}


def log_odds(logp):
    p = torch.exp(logp)
    return torch.log(p / (1 - p))  # ORIGIN


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.logp = nn.Parameter(torch.tensor([-1e-9, -2.0]))

    def forward(self, fixed):
        if fixed:
            odds = self.logp - torch.log(-torch.expm1(self.logp))
        else:
            odds = log_odds(self.logp)
        return -F.logsigmoid(odds[1] - 0.1 * odds[0])


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
