"""asinh(s) / s at a slope of 0 by torch.div with keywords, inside of torch.stack.

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
    "loss_truth": 43.44357864,
}


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.slope = nn.Parameter(torch.tensor([0.0, 1.0]))

    def forward(self, fixed):
        s = self.slope
        if fixed:
            near = s == 0
            safe = torch.where(near, 1.0, s)
            q = torch.where(near, 1 - s**2 / 6, torch.asinh(safe) / safe)
            parts = torch.stack([q, (1 + s**2).sqrt()])
        else:
            parts = torch.stack([torch.div(input=torch.asinh(s), other=s), (1 + s**2).sqrt()])  # ORIGIN
        return parts.sum(0).mul(torch.tensor([1.0, 2.0])).sum() ** 2


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
