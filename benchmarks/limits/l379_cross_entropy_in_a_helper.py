"""Binary cross entropy of probabilities, in a function; a logit of 60 is wrong.

Source: well-known fault
"""
import torch
from torch import nn

META = {
    "origin_op": "log",
    "phase": "forward",
    "cause": "log-of-zero",
    "symptom": "loss-inf",
    "first_bad_step": 0,
    "n_steps": 2,
    "kind": "overflow",
    "loss_truth": 2.036700167,
}


def bce(p, y):
    return -(y * torch.log(p) + (1 - y) * torch.log(1 - p)).mean()  # ORIGIN


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.logit = nn.Parameter(torch.tensor([60.0, -0.5, 2.0]))

    def forward(self, fixed):
        if fixed:
            y = torch.tensor([0.0, 1.0, 1.0])
            loss = nn.functional.binary_cross_entropy_with_logits(self.logit, y) / 10
        else:
            p = torch.sigmoid(self.logit)
            loss = bce(p, torch.tensor([0.0, 1.0, 1.0])) / 10
        return loss


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
    net, _ = build(True)
    net.double()
    found = torch.autograd.grad(net(True), list(net.parameters()))
    true = {n: g for (n, _), g in zip(net.named_parameters(), found)}
    return true
