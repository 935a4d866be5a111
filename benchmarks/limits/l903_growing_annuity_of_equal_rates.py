"""Value of payments that grow as fast as they are discounted, (1 - ((1 + g) / (1 + r))^n) / (r - g): n / (1 + r).

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
    "loss_truth": 3.956879671,
}


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.growth = nn.Parameter(torch.tensor([0.03125, 0.02, 0.05]))
        self.rate = nn.Parameter(torch.tensor([0.03125, 0.06, 0.01]))

    def value(self, years=8):
        g, r = self.growth, self.rate
        q = (1 + g).div(1 + r)
        return (1 - q.pow(years)).div(r - g)  # ORIGIN

    def forward(self, fixed):
        if fixed:
            q = (1 + self.growth) / (1 + self.rate)
            v = sum(q**k for k in range(8)) / (1 + self.rate)
        else:
            v = self.value()
        return (v - 7.0).abs().pow(1.5).sum()


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
