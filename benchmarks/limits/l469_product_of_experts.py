"""Product of densities prod exp(-d^2 / 2) over 30 experts, then its log.

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
    "loss_truth": 105.7758621,
}


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.mu = nn.Parameter(torch.linspace(0.0, 3.0, 30))
        self.x = 4.0

    def forward(self, fixed):
        if fixed:
            loss = ((self.x - self.mu) ** 2 / 2).sum()
        else:
            density = torch.exp(-(self.x - self.mu) ** 2 / 2)
            joint = density.prod()
            loss = -joint.log()  # ORIGIN
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
