"""Heat exchanger with balanced streams: the logarithmic mean (d1 - d2) / log(d1 / d2) of two equal differences.

Source: well-known fault (LMTD of a balanced counterflow exchanger)
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
    "loss_truth": 3.563487948,
    "fix": "sqrt(d1 d2) (1 + z^2 / 24), z = log(d1 / d2)",
}


class Exchanger(nn.Module):
    def __init__(self):
        super().__init__()
        self.cold_out = nn.Parameter(torch.tensor([50.0, 60.0]))
        self.hot_out = nn.Parameter(torch.tensor([70.0, 75.0]))
        self.ua = nn.Parameter(torch.tensor(2.0))

    def duty(self, fixed):
        d1 = 90.0 - self.cold_out
        d2 = self.hot_out - 30.0
        if fixed:
            z = torch.log(d1 / d2)
            near = z.abs() < 1e-2
            lmtd = torch.where(near, (d1 * d2).sqrt() * (1 + z**2 / 24), (d1 - d2) / torch.where(near, torch.ones_like(z), z))
        else:
            lmtd = (d1 - d2) / torch.log(d1 / d2)  # ORIGIN
        return self.ua * lmtd

    def forward(self, fixed):
        return ((self.duty(fixed) - torch.tensor([70.0, 90.0]).to(self.ua)) / 10).pow(2).sum()


def build(fixed: bool = False):
    net = Exchanger()
    opt = torch.optim.SGD(net.parameters(), lr=1e-3)

    def step(i):
        opt.zero_grad()
        loss = net(fixed)
        loss.backward()
        opt.step()
        return loss

    return net, step


def truth():
    import math

    d1, d2 = 30.0, 45.0
    z = math.log(d1 / d2)
    lm = (d1 - d2) / z
    g1, g2 = 1 / z - (d1 - d2) / (z * z * d1), -1 / z + (d1 - d2) / (z * z * d2)
    first, second = 2 * (2 * 40.0 - 70) / 100, 2 * (2 * lm - 90) / 100
    return {
        "cold_out": torch.tensor([-first * 2 * 0.5, -second * 2 * g1], dtype=torch.float64),
        "hot_out": torch.tensor([first * 2 * 0.5, second * 2 * g2], dtype=torch.float64),
        "ua": torch.tensor(first * 40 + second * lm, dtype=torch.float64),
    }
