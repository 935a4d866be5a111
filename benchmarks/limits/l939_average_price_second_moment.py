"""Second moment of an average price (Turnbull and Wakeman) at an interest of 0: a difference of two infinities.

Source: well-known fault
"""
import torch
from torch import nn

META = {
    "origin_op": "reciprocal",
    "phase": "forward",
    "cause": "div-by-zero",
    "symptom": "loss-nan",
    "kind": "removable",
    "first_bad_step": 0,
    "n_steps": 2,
    "loss_truth": 0.2483767394,
}


def quadrature(r, s2, T):
    x, w = [-0.9061798459386640, -0.5384693101056831, 0.0, 0.5384693101056831, 0.9061798459386640], [0.2369268850561891, 0.4786286704993665, 0.5688888888888889, 0.4786286704993665, 0.2369268850561891]
    total = 0.0
    for a, wa in zip(x, w):
        s = T * (1 + a) / 2
        for b, wb in zip(x, w):
            t = s + (T - s) * (1 + b) / 2
            total = total + wa * wb * T / 2 * (T - s) / 2 * torch.exp((r + s2) * s + r * t)
    return 2 * total / T**2


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.r = nn.Parameter(torch.tensor([0.0, 0.3]))
        self.vol = nn.Parameter(torch.tensor(0.5))

    def forward(self, fixed):
        s2, T, r = self.vol**2, 1.0, self.r
        if fixed:
            m = quadrature(r, s2, T)
        else:
            m = 2 * torch.exp((2 * r + s2) * T) / ((r + s2) * (2 * r + s2) * T**2) + 2 / (r * T**2) * (1 / (2 * r + s2) - torch.exp(r * T) / (r + s2))  # ORIGIN
        return (m - 1.0).square().sum()


def build(fixed: bool = False):
    net = Net()
    opt = torch.optim.SGD(net.parameters(), lr=1e-4)

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
