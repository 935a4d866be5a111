"""KL of two heads' softmaxes.

Source: well-known fault
"""
import torch
from torch import nn
from torch.nn import functional as F

META = {
    "origin_op": "div",
    "phase": "forward",
    "cause": "zero-divisor",
    "symptom": "loss-nan",
    "first_bad_step": 0,
    "n_steps": 2,
    "kind": "overflow",
    "loss_truth": 0.03918898706,
}


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.s = nn.Linear(2, 3, bias=False)
        self.t = nn.Linear(2, 3, bias=False)
        with torch.no_grad():
            self.s.weight.copy_(torch.tensor([[100.0, 1.0], [-90.0, 3.0], [0.5, 0.1]]))
            self.t.weight.copy_(torch.tensor([[90.0, 1.0], [-20.0, 3.0], [0.5, 0.1]]))

    def forward(self, fixed):
        x = torch.tensor([[1.0, 0.5], [0.01, 0.1]])
        if fixed:
            a, b = F.log_softmax(self.s(x), -1), F.log_softmax(self.t(x), -1)
            return (a.exp() * (a - b)).sum()
        p = torch.softmax(self.s(x), -1)
        q = torch.softmax(self.t(x), -1)
        kl = (p * (p / q).log()).sum()  # ORIGIN
        return kl


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
