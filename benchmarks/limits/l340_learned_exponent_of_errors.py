"""Errors to a learned power of 2; for a negative error its derivative has a log(-1).

Source: well-known fault
"""
import torch
from torch import nn

META = {
    "origin_op": "pow",
    "phase": "backward",
    "cause": "pow-negative-base",
    "symptom": "grad-nan",
    "first_bad_step": 0,
    "n_steps": 2,
    "kind": "no-limit",
    "loss_truth": 0.25,
}


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.pred = nn.Parameter(torch.tensor([0.5, 2.0, 1.5]))
        self.p = nn.Parameter(torch.tensor(2.0))

    def forward(self, fixed):
        if fixed:
            error = self.pred - torch.tensor([1.0, 1.5, 1.0])
            loss = (error.abs() ** self.p).mean()
        else:
            error = self.pred - torch.tensor([1.0, 1.5, 1.0])
            loss = (error**self.p).mean()  # ORIGIN
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
    true["p"].view(-1)[0] = float("nan")
    return true
