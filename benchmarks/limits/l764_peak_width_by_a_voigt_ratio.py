"""Ratio sinh(x) / x of a broadening that is 0 for one line, in a list of dictionaries.

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
    "kind": "removable",
    "loss_truth": 2.872635837,
}


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.a = nn.Parameter(torch.tensor(0.0))
        self.b = nn.Parameter(torch.tensor(1.1))

    def forward(self, fixed):
        lines = [{"x": self.a, "w": 0.4}, {"x": self.b, "w": 0.9}]
        total = torch.zeros(())
        for line in lines:
            if fixed:
                x = line["x"]
                y = 1 + x**2 / 6 if x == 0 else torch.sinh(x) / x
            else:
                y = torch.sinh(line["x"]) / line["x"]  # ORIGIN
            total = total + line["w"] * y * (1 + line["x"])
        return (total - 1.0) ** 2


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
