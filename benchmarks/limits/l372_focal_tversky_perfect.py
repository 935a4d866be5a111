"""Focal Tversky loss (1 - index)^0.75 of a perfect prediction.

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
    "kind": "one-sided-infinite",
    "loss_truth": 2.000000001,
}


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.p = nn.Parameter(torch.tensor([1.0, 0.0, 1.0]))

    def forward(self, fixed):
        if fixed:
            y = torch.tensor([1.0, 0.0, 1.0])
            hit = (self.p * y).sum()
            index = hit / (hit + 0.3 * (self.p * (1 - y)).sum() + 0.7 * ((1 - self.p) * y).sum())
            loss = (1 - index + 1e-12) ** 0.75 + self.p.sum()
        else:
            y = torch.tensor([1.0, 0.0, 1.0])
            hit = (self.p * y).sum()
            index = hit / (hit + 0.3 * (self.p * (1 - y)).sum() + 0.7 * ((1 - self.p) * y).sum())
            loss = (1 - index) ** 0.75 + self.p.sum()  # ORIGIN
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
    true["p"].view(-1)[0] = -float("inf")
    true["p"].view(-1)[1] = float("inf")
    true["p"].view(-1)[2] = -float("inf")
    return true
