"""Normalised quaternions of a skeleton; a missing joint is 0, and its error is multiplied by 0.

Source: well-known fault
"""

import torch
from torch import nn

META = {
    "origin_op": "div",
    "phase": "forward",
    "cause": "div-by-zero",
    "symptom": "loss-nan",
    "first_bad_step": 0,
    "n_steps": 2,
    "kind": "masked",
    "loss_truth": 0.2596984979,
}


class Skeleton(nn.Module):
    def __init__(self):
        super().__init__()
        self.q = nn.Parameter(
            torch.tensor([[0.9, 0.1, 0.3, -0.2], [0.0, 0.0, 0.0, 0.0], [0.5, 0.5, -0.4, 0.6]])
        )

    def unit(self):
        return self.q / self.q.norm(dim=-1, keepdim=True)  # ORIGIN


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.skeleton = Skeleton()

    def forward(self, fixed):
        y = torch.tensor([[1.0, 0.0, 0.0, 0.0], [1.0, 0.0, 0.0, 0.0], [0.7, 0.1, 0.0, 0.7]])
        seen = torch.tensor([1.0, 0.0, 1.0])
        if fixed:
            q = self.skeleton.q[[0, 2]]
            error = (q / q.norm(dim=-1, keepdim=True) - y[[0, 2]]).pow(2).sum(-1)
            return error.sum() / 2
        error = (self.skeleton.unit() - y).pow(2).sum(-1)
        return (error * seen).sum() / seen.sum()


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
    net, step = build(True)
    net.double()
    step(0)
    true = {name: p.grad for name, p in net.named_parameters()}
    return true
