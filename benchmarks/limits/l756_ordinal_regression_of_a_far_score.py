"""Ordinal regression: probability of a level as the difference of two sigmoids of thresholds minus
score.

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
    "loss_truth": 59.96751071,
}


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.score = nn.Parameter(torch.tensor([120.0, 0.3]))
        self.cut = nn.Parameter(torch.tensor([-1.0, 1.0]))

    def forward(self, fixed):
        upper = self.cut[1] - self.score
        lower = self.cut[0] - self.score
        if fixed:
            logp = F.logsigmoid(upper) + F.logsigmoid(-lower)
            return -(logp + torch.log(-torch.expm1(lower - upper))).mean()
        p = torch.sigmoid(upper) - torch.sigmoid(lower)
        return -p.log().mean()  # ORIGIN


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
