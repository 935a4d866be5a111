"""Tracking risk sqrt(mean((r - mean r)^2)) of a portfolio of two deposits with fixed rates.

Source: well-known fault
"""

import torch
from torch import nn

META = {
    "origin_op": "sqrt",
    "phase": "forward",
    "cause": "norm-at-zero",
    "symptom": "loss-nan",
    "first_bad_step": 0,
    "n_steps": 2,
    "kind": "no-limit",
    "loss_truth": -0.35,
    "bound": 2.0,
}


def downside(returns):
    gap = returns - torch.mean(returns, dim=-1, keepdim=True)
    return torch.sqrt(torch.mean(gap**2, dim=-1))  # ORIGIN


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.w = nn.Parameter(torch.tensor([0.4, 0.6]))

    def forward(self, fixed):
        r = torch.tensor([[0.5, 0.5, 0.5], [0.25, 0.25, 0.25]])
        returns = self.w @ r
        if fixed:
            return -returns.mean() + 0 * self.w.sum()
        return downside(returns) - returns.mean()


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
    true["w"][:] = float("nan")
    return true
