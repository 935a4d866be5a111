"""Root of a number clamped at 0, which is exactly 0: no slope from below, an infinite one from
above.

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
    "loss_truth": 0.52,
}


def spread(second, first):
    return torch.sqrt(torch.clamp(second - first**2, min=0))  # ORIGIN


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.second = nn.Parameter(torch.tensor([0.25, 2.0]))
        self.first = nn.Parameter(torch.tensor([0.5, 1.0]))

    def forward(self, fixed):
        if fixed:
            rest = 0.0 * (self.second[0] + self.first[0])
            return (spread(self.second[1], self.first[1]) - 0.4) ** 2 + 0.16 + rest
        return (spread(self.second, self.first) - 0.4).pow(2).sum()


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
    true["second"][0] = float("nan")
    true["first"][0] = float("nan")
    return true
