"""Unbiased variance of groups, one of which has one member; torch.where leaves it out.

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
    "loss_truth": 2.7,
}


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.x = nn.Parameter(torch.tensor([0.5, 2.0, -1.0, 0.3]))
        self.register_buffer("group", torch.tensor([[1.0, 1.0, 1.0, 0.0], [0.0, 0.0, 0.0, 1.0]]))

    def forward(self, fixed):
        n = self.group.sum(dim=1)
        mean = self.group @ self.x / n
        ss = (self.group * (self.x[None] - mean[:, None]) ** 2).sum(dim=1)
        if fixed:
            var = ss / (n - 1).clamp_min(1)
        else:
            var = ss / (n - 1)  # ORIGIN
        return torch.where(n > 1, var, torch.zeros_like(var)).sum() + self.x.mean()


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
