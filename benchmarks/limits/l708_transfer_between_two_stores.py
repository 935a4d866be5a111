"""(exp(-a t) - exp(-b t)) / (b - a) of two stores whose rates agree; both rates come out of one
product.

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
    "loss_truth": 0.02644682609,
}


def transfer(a, b, t):
    difference = torch.exp(-a * t) - torch.exp(-b * t)
    return difference / (b - a)  # ORIGIN


def transfer_stably(a, b, t):
    h = (b - a) * t / 2
    near = h.abs() < 1e-3
    w = torch.where(near, torch.ones_like(h), h)
    shape = torch.where(near, 1 + h**2 / 6, torch.sinh(w) / w)
    return t * torch.exp(-(a + b) * t / 2) * shape


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.basis = nn.Parameter(torch.tensor([[0.5, 0.2], [0.25, 0.4]]))

    def forward(self, fixed):
        a, b = torch.einsum("ij,j->i", self.basis, torch.tensor([1.0, 2.0])).unbind()
        t = torch.tensor([0.5, 1.0, 3.0])
        a = a - 0.9 + 0.5
        b = b - 1.05 + 0.5
        y = transfer_stably(a, b, t) if fixed else transfer(a, b, t)
        return (y - torch.tensor([0.3, 0.4, 0.5])).pow(2).mean()


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
