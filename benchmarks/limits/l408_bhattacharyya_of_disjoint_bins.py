"""Bhattacharyya coefficient sum sqrt(p q) where a target bin is 0: the gradient by p is 0 there.

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
    "loss_truth": 0.3533617631,
}


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.w = nn.Parameter(torch.tensor([0.1, 0.6, -0.4]))
        self.register_buffer('q', torch.tensor([0.6, 0.0, 0.4]))

    def overlap(self, p, q):
        mixed = p * q
        return mixed.pow(0.5).sum()  # ORIGIN

    def forward(self, fixed):
        if fixed:
            p = torch.softmax(self.w, 0)
            loss = -torch.log((p.sqrt() * self.q.sqrt()).sum())
        else:
            p = torch.softmax(self.w, 0)
            loss = -torch.log(self.overlap(p, self.q))
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
