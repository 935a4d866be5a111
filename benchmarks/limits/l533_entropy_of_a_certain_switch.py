"""Binary entropy on two lines with a logit of 120: 0 times the logarithm of 0.

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
    "loss_truth": 1.047356345,
}


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.z = nn.Parameter(torch.tensor([120.0, 0.3, -2.0]))

    def forward(self, fixed):
        p = torch.sigmoid(self.z)
        if fixed:
            on = -p * F.logsigmoid(self.z)
            off = -torch.sigmoid(-self.z) * F.logsigmoid(-self.z)
        else:
            on = -p * torch.log(p)
            off = -(1 - p) * torch.log(1 - p)  # ORIGIN
        return (on + off).sum()


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
