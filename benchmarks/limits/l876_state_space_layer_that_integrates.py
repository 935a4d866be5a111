"""Diagonal state-space layer, zero-order hold: (exp(dt A) - 1) / A * B, in a recurrence over time;
one state has A = 0.

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
    "loss_truth": 0.0133619051,
}


class StateSpace(nn.Module):
    def __init__(self):
        super().__init__()
        self.A = nn.Parameter(torch.tensor([-0.5, 0.0, -2.0]))
        self.B = nn.Parameter(torch.tensor([0.4, 0.7, -0.3]))
        self.C = nn.Parameter(torch.tensor([1.0, 0.5, -0.8]))
        self.log_dt = nn.Parameter(torch.tensor(-1.5))

    def discretise(self):
        dt = torch.exp(self.log_dt)
        A_bar = torch.exp(dt * self.A)
        B_bar = (A_bar - 1) / self.A * self.B  # ORIGIN
        return A_bar, B_bar

    def forward(self, u, discretised=None):
        A_bar, B_bar = discretised or self.discretise()
        h = torch.zeros(3)
        ys = []
        for u_t in u:
            h = A_bar * h + B_bar * u_t
            ys.append(self.C @ h)
        return torch.stack(ys)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = StateSpace()

    def forward(self, fixed):
        u = torch.tensor([0.3, -0.1, 0.8, 0.5])
        target = torch.tensor([0.1, 0.2, 0.1, 0.4])
        if fixed:
            a, dt = self.layer.A, torch.exp(self.layer.log_dt)
            zero = a == 0
            safe = torch.where(zero, 1.0, a)
            series = dt + dt**2 * a / 2
            held = torch.where(zero, series, torch.expm1(dt * safe) / safe)
            y = self.layer(u, (torch.exp(dt * a), held * self.layer.B))
        else:
            y = self.layer(u)
        return ((y - target) ** 2).mean()


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
    return {name: p.grad for name, p in net.named_parameters()}
