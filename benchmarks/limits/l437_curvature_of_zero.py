"""Poincare ball of learnable curvature: tanh(sqrt(c) r) / (sqrt(c) r) at c = 0.

Source: well-known fault
"""
import torch
from torch import nn

META = {
    "origin_op": "div",
    "phase": "forward",
    "cause": "zero-divisor",
    "symptom": "loss-nan",
    "first_bad_step": 0,
    "n_steps": 2,
    "kind": "removable",
    "loss_truth": 1.2,
}


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.c = nn.Parameter(torch.tensor(0.0))
        self.v = nn.Parameter(torch.tensor([[0.3, 0.4], [1.0, -0.5]]))

    def forward(self, fixed):
        if fixed:
            r2 = (self.v**2).sum(1, keepdim=True)
            loss = ((1 - self.c * r2 / 3) * self.v).sum()
        else:
            r = self.v.norm(dim=1, keepdim=True)
            root = self.c.sqrt()
            loss = (torch.tanh(root * r) / (root * r) * self.v).sum()  # ORIGIN
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
