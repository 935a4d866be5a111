"""Minkowski distance of order 3 of two equal rows.

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
    "kind": "no-limit",
    "bound": 1.0,
    "loss_truth": 1.635533155,
}


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.a = nn.Parameter(torch.tensor([[1.0, 2.0], [0.5, -1.0]]))
        self.b = nn.Parameter(torch.tensor([[1.0, 2.0], [1.5, 0.5]]))

    def forward(self, fixed):
        if fixed:
            gap = (self.a[1] - self.b[1]).abs()
            loss = (gap**3).sum(-1) ** (1 / 3) + 0 * (self.a[0] - self.b[0]).sum()
        else:
            gap = (self.a - self.b).abs()
            d = (gap**3).sum(-1) ** (1 / 3)  # ORIGIN
            loss = d.sum()
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
    true["a"].view(-1)[0] = float("nan")
    true["a"].view(-1)[1] = float("nan")
    true["b"].view(-1)[0] = float("nan")
    true["b"].view(-1)[1] = float("nan")
    return true
