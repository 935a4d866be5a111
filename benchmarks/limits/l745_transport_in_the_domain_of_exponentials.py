"""Entropic transport: three rounds of a = r / (K b), b = c / (K' a) with K = exp(-C / 0.004), and
the mean cost.

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
    "kind": "overflow",
    "loss_truth": 0.7167368421,
}


def sinkhorn(C, r, c, reg, rounds):
    K = torch.exp(-C / reg)
    b = torch.ones_like(c)
    for _ in range(rounds):
        a = r / (K @ b)  # ORIGIN
        b = c / (K.t() @ a)
    return a.unsqueeze(1) * K * b.unsqueeze(0)


def log_sinkhorn(C, r, c, reg, rounds):
    g = torch.zeros_like(c)
    for _ in range(rounds):
        f = torch.log(r) - torch.logsumexp(-C / reg + g, 1)
        g = torch.log(c) - torch.logsumexp((-C / reg).t() + f, 1)
    return torch.exp(f.unsqueeze(1) - C / reg + g.unsqueeze(0))


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.x = nn.Parameter(torch.tensor([0.0, 1.0]))

    def forward(self, fixed):
        y = torch.tensor([0.8, 1.9])
        C = (self.x[:, None] - y[None, :]) ** 2
        r, c = torch.tensor([0.5, 0.5]), torch.tensor([0.4, 0.6])
        plan = (log_sinkhorn if fixed else sinkhorn)(C, r, c, 0.004, 3)
        return (plan * C).sum()


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
