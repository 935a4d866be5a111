"""phi_1 and phi_2 of an exponential integrator with the numerators on one line and the quotients on
the next; a mode without stiffness.

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
    "loss_truth": 0.07423682846,
}


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.lam = nn.Parameter(torch.tensor([-1.0, 0.0]))

    def forward(self, fixed):
        z = self.lam * 0.5
        e = torch.exp(z)
        if fixed:
            near = z.abs() < 1e-3
            w = torch.where(near, torch.ones_like(z), z)
            p1 = torch.where(near, 1 + z / 2 + z**2 / 6, torch.expm1(w) / w)
            p2 = torch.where(near, 0.5 + z / 6 + z**2 / 24, (torch.expm1(w) - w) / w**2)
        else:
            n1, n2 = e - 1, e - 1 - z
            p1, p2 = n1 / z, n2 / z**2  # ORIGIN
        u = e * torch.tensor([1.0, 0.5]) + 0.5 * p1 * 0.3 + 0.25 * p2 * 0.1
        return (u - torch.tensor([0.5, 0.8])).square().sum()


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
