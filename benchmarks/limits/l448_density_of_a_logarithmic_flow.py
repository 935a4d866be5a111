"""Flow log(1 + a x) / a + shift with its log determinant from the Jacobian by vmap(jacrev); one rate
starts at 0, where the map is x, its slope in a -x^2 / 2, and that of the log determinant -x.

Source: well-known fault (a flow started at the identity)
"""

from functools import partial

import torch
from torch import nn
from torch.func import jacrev, vmap

META = {
    "origin_op": "div",
    "phase": "forward",
    "cause": "div-by-zero",
    "symptom": "loss-nan",
    "first_bad_step": 0,
    "n_steps": 2,
    "kind": "removable",
    "loss_truth": 0.78042783,
    "fix": "x times the series 1 - a x / 2 + (a x)^2 / 3 near 0",
}
X = [[0.6, 1.4], [0.3, 0.8], [0.9, 0.5]]


class Flow(nn.Module):
    def __init__(self):
        super().__init__()
        self.rate = nn.Parameter(torch.tensor([0.5, 0.0]))
        self.shift = nn.Parameter(torch.tensor([0.1, -0.2]))

    def push(self, x, fixed):
        if fixed:
            z = self.rate * x
            near = z.abs() < 0.02
            far = torch.where(near, torch.ones_like(z), z)
            series = 1 - z / 2 + z**2 / 3 - z**3 / 4
            return x * torch.where(near, series, torch.log1p(far) / far) + self.shift
        return torch.log1p(self.rate * x) / self.rate + self.shift  # ORIGIN

    def forward(self, fixed=False):
        x, push = torch.tensor(X), partial(self.push, fixed=fixed)
        volume = torch.linalg.slogdet(vmap(jacrev(push))(x))[1]
        return (0.5 * vmap(push)(x).square().sum(1) - volume).mean()


def build(fixed: bool = False):
    net = Flow()
    opt = torch.optim.SGD(net.parameters(), lr=1e-2)

    def step(i):
        opt.zero_grad()
        loss = net(fixed)
        loss.backward()
        opt.step()
        return loss

    return net, step


def truth():
    x, v = torch.tensor(X, dtype=torch.float64).unbind(1)
    grown = 1 + 0.5 * x
    y, w = grown.log() / 0.5 + 0.1, v - 0.2
    rate = [(y * (x / grown / 0.5 - grown.log() / 0.25) + x / grown).mean(), (v - w * v * v / 2).mean()]
    return {"rate": torch.stack(rate), "shift": torch.stack([y.mean(), w.mean()])}
