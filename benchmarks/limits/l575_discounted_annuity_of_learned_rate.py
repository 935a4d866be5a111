"""Present value (1 - (1 + r)^-n) / r of n payments at a rate of 0, n a tensor.

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
    "loss_truth": 25.19935873,
}


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.r = nn.Parameter(torch.tensor([0.0, 0.05]))
        self.pay = nn.Parameter(torch.tensor([1.0, 2.0]))

    def value(self, years):
        growth = (1 + self.r).pow(-years)
        return self.pay * ((1 - growth) / self.r)  # ORIGIN

    def forward(self, fixed):
        years = torch.tensor([10.0, 3.0])
        if fixed:
            r = self.r
            first = self.pay[:1] * (10 - r[:1] * 55)
            worth = torch.cat([first, self.pay[1:] * (1 - (1 + r[1:]) ** -3) / r[1:]])
        else:
            worth = self.value(years)
        return (worth - 5.0).pow(2).sum()


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
