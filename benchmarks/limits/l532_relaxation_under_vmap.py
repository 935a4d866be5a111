"""(1 - exp(-k t)) / k per sample by vmap over rates, one of them 0.

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
    "loss_truth": 0.7966424836,
}


def relaxed(k, t):
    decay = torch.exp(-k * t)
    return (1.0 - decay) / k  # ORIGIN


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.k = nn.Parameter(torch.tensor([0.0, 0.7, 2.0]))

    def forward(self, fixed):
        t = torch.tensor([1.5, 1.0, 0.5])
        if fixed:
            k, s = self.k[1:], t[1:]
            first = (t[0] - self.k[:1] * t[0] ** 2 / 2)
            y = torch.cat([first, -torch.expm1(-k * s) / k])
        else:
            y = torch.vmap(relaxed)(self.k, t)
        return (y - 1.0).pow(2).sum()


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
