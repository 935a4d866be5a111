"""Hellinger distance of a histogram w^2 / sum w^2 with an empty bin on both sides: the square of the root is the bin.

Source: well-known fault
"""
import torch
from torch import nn

META = {
    "origin_op": "sqrt",
    "phase": "backward",
    "cause": "sqrt-at-zero",
    "symptom": "grad-nan",
    "first_bad_step": 0,
    "n_steps": 2,
    "kind": "removable",
    "loss_truth": 0.04985313087,
}


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.w = nn.Parameter(torch.tensor([0.0, 0.8, 1.1, 0.4]))
        self.register_buffer('q', torch.tensor([0.0, 0.5, 0.3, 0.2]))

    def forward(self, fixed):
        if fixed:
            p = self.w.square() / self.w.square().sum()
            safe = torch.where(p == 0, 1.0, p)
            loss = 0.5 * (p + self.q - 2 * torch.where(p == 0, 0.0, (safe * self.q).sqrt())).sum()
        else:
            p = self.w.square() / self.w.square().sum()
            loss = 0.5 * (p.sqrt() - self.q.sqrt()).square().sum()  # ORIGIN
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
