"""Nelson-Siegel loadings on a curve whose first maturity is 0: slope and curvature on neighbouring
lines.

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
    "loss_truth": 0.04419055313,
}


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.beta = nn.Parameter(torch.tensor([0.03, -0.02, 0.01]))
        self.decay = nn.Parameter(torch.tensor(0.6))

    def forward(self, fixed):
        tau = torch.tensor([0.0, 1.0, 5.0, 10.0])
        x = self.decay * tau
        if fixed:
            near = tau < 1e-6
            w = torch.where(near, torch.ones_like(x), x)
            slope = torch.where(near, 1 - x / 2, -torch.expm1(-w) / w)
        else:
            slope = (1 - torch.exp(-x)) / x  # ORIGIN
        curvature = slope - torch.exp(-x)
        rate = self.beta[0] + self.beta[1] * slope + self.beta[2] * curvature
        return ((rate - torch.tensor([0.012, 0.02, 0.025, 0.03])) * 100).pow(2).mean()


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
