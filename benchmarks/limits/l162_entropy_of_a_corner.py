"""Entropy of a learned distribution in a corner: x log x at 0 has an infinite slope.

Source: well-known fault (entropy bonus of a deterministic policy)
"""
import torch
from torch import nn

META = {
    "origin_op": "log",
    "phase": "forward",
    "cause": "log-of-zero",
    "symptom": "loss-nan",
    "first_bad_step": 0,
    "n_steps": 2,
    "kind": "one-sided-infinite",
    "loss_truth": -0.153011647,
}


class Policy(nn.Module):
    def __init__(self):
        super().__init__()
        self.p = nn.Parameter(torch.tensor([0.0, 0.4, 0.6]))

    def forward(self, fixed):
        if fixed:
            entropy = -(self.p * torch.log(self.p + 1e-8)).sum()
        else:
            entropy = -(self.p * torch.log(self.p)).sum()  # ORIGIN
        loss = -entropy + self.p.pow(2).sum()
        return loss


def build(fixed: bool = False):
    net = Policy()
    opt = torch.optim.SGD(net.parameters(), lr=1e-6)

    def step(i):
        opt.zero_grad()
        loss = net(fixed)
        loss.backward()
        opt.step()
        return loss

    return net, step


def truth():
    p = torch.tensor([0.0, 0.4, 0.6], dtype=torch.float64, requires_grad=True)
    entropy = -(p * torch.log(p + 1e-8)).sum()
    loss = -entropy + p.pow(2).sum()
    dp_, = torch.autograd.grad(loss, [p])
    dp_[0] = -float("inf")
    return {"p": dp_}
