"""Dose-response curves (Hill, c^n / (K^n + c^n)) of two cell lines with concentrations in pM: 1 mM to the power of 4.6 is beyond float32."""
import torch
from torch import nn

META = {
    "origin_op": "pow",
    "phase": "forward",
    "cause": "exp-overflow",
    "symptom": "loss-nan",
    "first_bad_step": 0,
    "n_steps": 2,
    "kind": "overflow",
    "form": "vmap, helper",
    "loss_truth": 0.003806955608,
    "fix": "sigmoid(n (log c - log K))",
}

DOSE = [1e5, 1e6, 1e7, 3e7, 1e8, 1e9]
SEEN = [[0.02, 0.05, 0.3, 0.7, 0.95, 1.05], [0.1, 0.12, 0.11, 0.4, 0.8, 0.9]]
START = {"log_k": [16.6, 17.6], "log_n": [0.4, 1.526], "bottom": [0.0, 0.1], "top": [1.0, 0.85]}


def hill(dose, k, n):
    return dose**n / (k**n + dose**n)  # ORIGIN


def hill_stable(dose, k, n):
    return torch.sigmoid(n * torch.log(dose / k))


class Curves(nn.Module):
    def __init__(self, occupancy):
        super().__init__()
        self.occupancy = occupancy
        for name, value in START.items():
            setattr(self, name, nn.Parameter(torch.tensor(value)))

    def curve(self, log_k, log_n, bottom, top, dose):
        return bottom + (top - bottom) * self.occupancy(dose, log_k.exp(), log_n.exp())

    def forward(self, dose):
        return torch.vmap(self.curve, in_dims=(0, 0, 0, 0, None))(self.log_k, self.log_n, self.bottom, self.top, dose)


def build(fixed: bool = False):
    net = Curves(hill_stable if fixed else hill)
    opt = torch.optim.Adam(net.parameters(), lr=1e-3)
    dose, seen = torch.tensor(DOSE), torch.tensor(SEEN)

    def step(i):
        opt.zero_grad()
        loss = (net(dose) - seen).pow(2).mean()
        loss.backward()
        opt.step()
        return loss

    return net, step


def truth():
    p = {n: torch.tensor(v, dtype=torch.float64)[:, None] for n, v in START.items()}
    n, dose = p["log_n"].exp(), torch.tensor(DOSE, dtype=torch.float64)
    gap = dose.log() - p["log_k"]
    f = 1 / (1 + torch.exp(-n * gap))
    left = (p["bottom"] + (p["top"] - p["bottom"]) * f - torch.tensor(SEEN, dtype=torch.float64)) / 6
    slope = left * (p["top"] - p["bottom"]) * f * (1 - f)
    return {"log_k": -(slope * n).sum(1), "log_n": (slope * n * gap).sum(1), "bottom": (left * (1 - f)).sum(1), "top": (left * f).sum(1)}
