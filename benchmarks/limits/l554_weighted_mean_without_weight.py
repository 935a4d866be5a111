"""Weighted mean per class by matrix products, a class without members taken out by nan_to_num afterwards and a mask.

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
    "kind": "masked",
    "loss_truth": 3.2225,
}


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.x = nn.Parameter(torch.tensor([[1.0, 2.0], [0.5, -1.0], [2.0, 0.0]]))

    def forward(self, fixed):
        member = torch.tensor([[1.0, 1.0, 0.0], [0.0, 0.0, 1.0], [0.0, 0.0, 0.0]])
        here = member.any(1)
        if fixed:
            proto = member[:2] @ self.x / member[:2].sum(1, keepdim=True)
            return (proto - 0.3).pow(2).sum()
        proto = (member @ self.x).div(member.sum(1, keepdim=True))  # ORIGIN
        gap = (proto - 0.3).pow(2).sum(1)
        return torch.where(here, gap, gap.new_zeros(3)).sum()


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
