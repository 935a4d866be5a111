"""Two Sinkhorn iterations with a regularisation of 0.005: the kernel underflows.

Source: well-known fault
"""
import math

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
    "loss_truth": 0.95,
}


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.cost = nn.Parameter(torch.tensor([[1.0, 1.2], [1.1, 0.9]]))

    def forward(self, fixed):
        if fixed:
            k = -self.cost / 0.005
            g = torch.zeros(2)
            for _ in range(2):
                f = math.log(0.5) - torch.logsumexp(k + g, 1)
                g = math.log(0.5) - torch.logsumexp(k.T + f, 1)
            plan = torch.exp(f[:, None] + k + g[None, :])
            loss = (plan * self.cost).sum()
        else:
            kernel = torch.exp(-self.cost / 0.005)
            v = torch.ones(2)
            for _ in range(2):
                u = 0.5 / (kernel @ v)  # ORIGIN
                v = 0.5 / (kernel.T @ u)
            plan = u[:, None] * kernel * v[None, :]
            loss = (plan * self.cost).sum()
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
    net, _ = build(True)
    net.double()
    found = torch.autograd.grad(net(True), list(net.parameters()))
    true = {n: g for (n, _), g in zip(net.named_parameters(), found)}
    return true
