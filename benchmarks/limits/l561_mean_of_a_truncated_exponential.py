"""Mean 1 / k - 1 / (exp(k) - 1) of an exponential on [0, 1], at a rate of 0: one half.

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
    "loss_truth": 0.01631226276,
}


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.rate = nn.ParameterDict({"a": torch.tensor(0.0), "b": torch.tensor(1.5)})

    def forward(self, fixed):
        loss = 0.0
        for name, goal in (("a", 0.4), ("b", 0.3)):
            k = self.rate[name]
            if fixed:
                mean = 0.5 - k / 12 if name == "a" else 1 / k - 1 / torch.expm1(k)
            else:
                mean = 1 / k - 1 / (k.exp() - 1)  # ORIGIN
            loss = loss + (mean - goal) ** 2
        return loss


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
