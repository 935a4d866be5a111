"""Step of an exponential integrator for diffusion, (exp(h) - 1) / h with h the step of the log
signal-to-noise ratio; two levels are equal.

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
    "loss_truth": 0.01395896006,
}


class Solver(nn.Module):
    def __init__(self):
        super().__init__()
        self.lam = nn.Parameter(torch.tensor([-1.0, 0.5, 0.5, 1.7]))

    def weights(self):
        h = self.lam[1:] - self.lam[:-1]
        return (torch.exp(h) - 1) / h  # ORIGIN


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.solver = Solver()

    def forward(self, fixed):
        eps = torch.tensor([0.4, -0.9, 0.7])
        if fixed:
            h = self.solver.lam[1:] - self.solver.lam[:-1]
            w = torch.stack([torch.expm1(h[0]) / h[0], 1 + h[1] / 2, torch.expm1(h[2]) / h[2]])
        else:
            w = self.solver.weights()
        return ((w * eps).sum() - 1.5) ** 2


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
