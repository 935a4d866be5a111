"""1 / x^2 of a separation of 1e-15: the value 1e30 fits, the derivative 2e45 does not; the weight is 1e-30.

Source: well-known fault
"""
import torch
from torch import nn

META = {
    "origin_op": "reciprocal",
    "phase": "backward",
    "cause": "div-by-tiny",
    "symptom": "grad-nan",
    "kind": "overflow",
    "first_bad_step": 0,
    "n_steps": 2,
    "loss_truth": 1.4,
}


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.x = nn.Parameter(torch.tensor([1e-15, 0.5]))

    def forward(self, fixed):
        weight = torch.tensor([1e-30, 0.1])
        if fixed:
            return (torch.exp(-2 * torch.log(self.x) + torch.log(weight))).sum()
        return (weight * (1 / self.x**2)).sum()  # ORIGIN


def build(fixed: bool = False):
    net = Net()
    opt = torch.optim.SGD(net.parameters(), lr=1e-34)

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
    true = {n: p.grad if p.grad is not None else torch.zeros_like(p) for n, p in net.named_parameters()}
    return true
