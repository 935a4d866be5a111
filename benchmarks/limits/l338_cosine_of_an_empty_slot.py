"""Cosine of two slots by hand; the slot that is all zero has weight 0.

Source: well-known fault
"""
import torch
from torch import nn

META = {
    "origin_op": "div",
    "phase": "forward",
    "cause": "norm-at-zero",
    "symptom": "loss-nan",
    "first_bad_step": 0,
    "n_steps": 2,
    "kind": "masked",
    "loss_truth": 0.3492086265,
}


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.a = nn.Parameter(torch.tensor([[0.0, 0.0], [1.0, 2.0]]))
        self.b = nn.Parameter(torch.tensor([[0.3, -0.4], [2.0, 0.5]]))

    def forward(self, fixed):
        if fixed:
            a, b = self.a[1], self.b[1]
            loss = 1 - (a * b).sum() / (a.norm() * b.norm())
            loss = loss + 0 * (self.a[0].sum() + self.b[0].sum())
        else:
            used = torch.tensor([0.0, 1.0])
            inner = (self.a * self.b).sum(-1)
            similarity = inner / (self.a.norm(dim=-1) * self.b.norm(dim=-1))  # ORIGIN
            loss = ((1 - similarity) * used).sum()
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
