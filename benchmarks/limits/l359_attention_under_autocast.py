"""Attention weights by hand from bfloat16 scores of 100.

Source: well-known fault
"""
import torch
from torch import nn

META = {
    "origin_op": "exp",
    "phase": "forward",
    "cause": "exp-overflow",
    "symptom": "loss-nan",
    "first_bad_step": 0,
    "n_steps": 2,
    "kind": "overflow",
    "loss_truth": 4.182425524,
}


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.q = nn.Parameter(torch.tensor([[100.0, 1.0], [2.0, 0.5]]))

    def forward(self, fixed):
        if fixed:
            weights = torch.softmax(self.q, 1)
            loss = (weights * torch.tensor([[1.0, 2.0], [3.0, 4.0]])).sum()
        else:
            with torch.autocast("cpu", torch.bfloat16):
                s = self.q @ torch.eye(2)
                weights = torch.exp(s) / torch.exp(s).sum(1, keepdim=True)  # ORIGIN
            loss = (weights.float() * torch.tensor([[1.0, 2.0], [3.0, 4.0]])).sum()
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
