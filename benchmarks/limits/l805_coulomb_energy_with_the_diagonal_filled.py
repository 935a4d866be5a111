"""Coulomb energy q_i q_j / r_ij over all pairs, whose infinite diagonal is filled with 0
afterwards.

Source: well-known fault
"""

import torch
from torch import nn

META = {
    "origin_op": "div",
    "phase": "backward",
    "cause": "div-by-zero",
    "symptom": "grad-nan",
    "first_bad_step": 0,
    "n_steps": 2,
    "kind": "masked",
    "loss_truth": -0.5404704467,
}


class Coulomb(nn.Module):
    def forward(self, x, q):
        r = torch.cdist(x, x)
        energy = q[:, None] * q[None, :] / r  # ORIGIN
        energy.fill_diagonal_(0.0)
        return 0.5 * energy.sum()


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.x = nn.Parameter(torch.tensor([[0.0, 0.0], [1.0, 0.2], [-0.5, 0.9]]))
        self.q = nn.Parameter(torch.tensor([1.0, -0.8, 0.5]))
        self.energy = Coulomb()

    def forward(self, fixed):
        if fixed:
            total = 0.0
            for i, j in [(0, 1), (0, 2), (1, 2)]:
                r = (self.x[i] - self.x[j]).pow(2).sum().sqrt()
                total = total + self.q[i] * self.q[j] / r
            return total
        return self.energy(self.x, self.q)


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
