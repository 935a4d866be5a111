"""Sensitivities by torch.func.jvp of a model with a bare square root: the tangent at zero is infinite."""

import torch
from torch import nn
from torch.func import jvp

META = {
    "origin_op": "sqrt",
    "phase": "forward",
    "cause": "sqrt-at-zero",
    "symptom": "loss-nan",
    "first_bad_step": 3,
    "n_steps": 5,
    "fix": "an epsilon under the root",
    "also_ops": ["div", "mul"],
    "also_phase": "backward",
    "also_causes": ["div-by-zero", "zero-times-inf"],
}


class Flowrate(nn.Module):
    def __init__(self, eps):
        super().__init__()
        self.eps = eps
        self.net = nn.Sequential(nn.Linear(3, 12), nn.ReLU(), nn.Linear(12, 1, bias=False))

    def head(self, x):
        return torch.sqrt(torch.relu(self.net(x)).squeeze(-1) + self.eps)  # ORIGIN

    def forward(self, x, direction):
        return jvp(self.head, (x,), (direction,))


def build(fixed: bool = False):
    torch.manual_seed(1211)
    net = Flowrate(1e-2 if fixed else 0.0)
    opt = torch.optim.Adam(net.parameters(), lr=1e-3)
    gen = torch.Generator().manual_seed(1212)
    with torch.no_grad():
        net.net[0].weight.abs_()
        net.net[2].weight.abs_()

    def step(i):
        x = torch.randn(6, 3, generator=gen).abs()
        if i == 3:
            x[2] = -50.0 * torch.ones(3)
        value, slope = net(x, torch.ones(6, 3))
        loss = (value - 1).pow(2).mean() + 0.1 * slope.pow(2).mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
        return loss

    return net, step
