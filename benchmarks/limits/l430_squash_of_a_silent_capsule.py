"""Capsule squash |v|^2 / (1 + |v|^2) * v / |v| of a capsule that is 0: its Jacobian is 0.

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
    "loss_truth": 0.4849750026,
}


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.v = nn.Parameter(torch.tensor([[0.0, 0.0, 0.0], [0.3, -0.8, 0.5]]))

    def squash(self, v):
        sq = (v**2).sum(-1, keepdim=True)
        return (sq / (1 + sq)) * (v / sq.sqrt())  # ORIGIN

    def forward(self, fixed):
        if fixed:
            sq = (self.v**2).sum(-1, keepdim=True)
            length = torch.where(sq == 0, 0.0, torch.sqrt(torch.where(sq == 0, 1.0, sq)))
            loss = ((self.v * length / (1 + sq) - 0.2) ** 2).sum()
        else:
            loss = ((self.squash(self.v) - 0.2) ** 2).sum()
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
