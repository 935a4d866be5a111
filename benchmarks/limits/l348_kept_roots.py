"""Half power of activities, those that are 0 dropped by a mask of 0 and 1.

Source: well-known fault
"""
import torch
from torch import nn

META = {
    "origin_op": "pow",
    "phase": "backward",
    "cause": "pow-fraction-at-zero",
    "symptom": "grad-nan",
    "first_bad_step": 0,
    "n_steps": 2,
    "kind": "masked",
    "loss_truth": 2.121320344,
}


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.x = nn.Parameter(torch.tensor([0.0, 0.5, 2.0]))
        self.half = 0.5

    def forward(self, fixed):
        if fixed:
            loss = self.x[1:].sqrt().sum() + 0 * self.x[0]
        else:
            keep = torch.tensor([0.0, 1.0, 1.0])
            loss = (self.x**self.half * keep).sum()  # ORIGIN
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
