"""Rhumb-line legs of a sea route through learned waypoints: the stretched-latitude quotient dlat / dpsi is 0 / 0 on the leg that runs due east."""
from dataclasses import dataclass

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
    "form": "two tensors that coincide",
    "loss_truth": 0.3355337022,
    "fix": "the cosine of the mean latitude where both latitudes are equal",
}


@dataclass(frozen=True)
class Config:
    radius: float = 6.371
    lr: float = 1e-3
    lat: tuple = (0.3, 0.5, 0.5, 0.8)
    lon: tuple = (0.0, 0.4, 0.9, 1.1)
    legs: tuple = (2.2, 3.1, 2.0)
    fixed: bool = False


class Route(nn.Module):
    def __init__(self, cfg: Config):
        super().__init__()
        self.cfg = cfg
        self.lat = nn.Parameter(torch.tensor(cfg.lat))
        self.lon = nn.Parameter(torch.tensor(cfg.lon))

    def stretch(self):
        dlat = self.lat.diff()
        dpsi = self.lat.tan().asinh().diff()
        if self.cfg.fixed:
            flat = dlat.abs() < 1e-4
            middle = torch.cos((self.lat[1:] + self.lat[:-1]) / 2)
            return torch.where(flat, middle, dlat / torch.where(flat, torch.ones_like(dpsi), dpsi))
        return dlat / dpsi  # ORIGIN

    def forward(self):
        return self.cfg.radius * torch.sqrt(self.lat.diff() ** 2 + (self.stretch() * self.lon.diff()) ** 2)


def build(fixed: bool = False):
    cfg = Config(fixed=fixed)
    route = Route(cfg)
    opt = torch.optim.SGD(route.parameters(), lr=cfg.lr)
    wanted = torch.tensor(cfg.legs)

    def step(i):
        opt.zero_grad()
        loss = (route() - wanted).square().sum()
        loss.backward()
        opt.step()
        return loss

    return route, step


def truth():
    def leaf(v):
        return torch.tensor(v, dtype=torch.float64, requires_grad=True)

    lat, lon = leaf([0.3, 0.5, 0.5, 0.8]), leaf([0.0, 0.4, 0.9, 1.1])
    psi = torch.log(torch.tan(torch.pi / 4 + lat / 2))
    q = [(lat[1] - lat[0]) / (psi[1] - psi[0]), torch.cos((lat[1] + lat[2]) / 2), (lat[3] - lat[2]) / (psi[3] - psi[2])]
    loss = 0.0
    for k, want in enumerate((2.2, 3.1, 2.0)):
        length = 6.371 * torch.sqrt((lat[k + 1] - lat[k]) ** 2 + (q[k] * (lon[k + 1] - lon[k])) ** 2)
        loss = loss + (length - want) ** 2
    g = torch.autograd.grad(loss, [lat, lon])
    return {"lat": g[0], "lon": g[1]}
