"""Log of the logistic density p (1 - p) / s by a sigmoid that has rounded to 1.

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
    "loss_truth": 20.50675376,
}


def logistic_pdf(x, mu, s):
    p = torch.sigmoid((x - mu) / s)
    return p * (1 - p) / s


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.mu = nn.Parameter(torch.tensor(0.2))
        self.s = nn.Parameter(torch.tensor(0.5))

    def forward(self, fixed):
        x = torch.tensor([0.4, 30.0, -1.0])
        if fixed:
            z = (x - self.mu) / self.s
            return -(F.logsigmoid(z) + F.logsigmoid(-z) - self.s.log()).mean()
        return -torch.log(logistic_pdf(x, self.mu, self.s)).mean()  # ORIGIN


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
