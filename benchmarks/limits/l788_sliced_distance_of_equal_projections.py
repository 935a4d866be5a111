"""Sliced Wasserstein distance: the root of the mean squared difference of sorted projections, the
same in both samples along one of them.

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
    "kind": "no-limit",
    "loss_truth": 0.3464101615,
}


def sliced_wasserstein(x, y, directions):
    px, _ = torch.sort(x @ directions, dim=0)
    py, _ = torch.sort(y @ directions, dim=0)
    return torch.sqrt(((px - py) ** 2).mean(0)).sum()  # ORIGIN


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.a = nn.Parameter(torch.tensor([[0.2], [0.9], [1.4]]))
        self.b = nn.Parameter(torch.tensor([[0.3], [0.7], [2.0]]))

    def forward(self, fixed):
        y = torch.tensor([[0.2, 0.1], [0.9, 1.1], [1.4, 1.6]])
        directions = torch.eye(2)
        if fixed:
            gap = (self.b[:, 0] - y[:, 1]).pow(2).mean().sqrt()
            return gap + 0.0 * self.a.sum()
        x = torch.cat([self.a, self.b], 1)
        return sliced_wasserstein(x, y, directions)


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
    true["a"][:] = float("nan")
    return true
