"""Haversine distances between predicted and recorded positions (unit sphere); one prediction is exactly right but 0.3 away from the wanted gap."""
import torch
from torch import nn

META = {
    "origin_op": "asin",
    "phase": "backward",
    "cause": "sqrt-at-zero",
    "symptom": "grad-nan",
    "first_bad_step": 0,
    "n_steps": 2,
    "kind": "no-limit",
    "loss_truth": 0.1157075633,
    "bound": 0.6,
    "fix": "a where with the coincident pair left out, or an epsilon under the root",
}


class Positions(nn.Module):
    def __init__(self):
        super().__init__()
        self.lat = nn.Parameter(torch.tensor([0.3, 0.7, -0.2]))
        self.lon = nn.Parameter(torch.tensor([0.0, 0.4, 1.1]))


def haversine(lat1, lon1, lat2, lon2, eps=0.0):
    dlat, dlon = lat2 - lat1, lon2 - lon1
    a = torch.sin(dlat / 2) ** 2 + torch.cos(lat1) * torch.cos(lat2) * torch.sin(dlon / 2) ** 2
    return 2 * torch.asin(torch.sqrt(a + eps))  # ORIGIN


def build(fixed: bool = False):
    net = Positions()
    opt = torch.optim.SGD(net.parameters(), lr=1e-3)
    lat, lon = torch.tensor([0.3, 0.5, -0.1]), torch.tensor([0.0, 0.1, 1.0])

    def step(i):
        d = haversine(net.lat, net.lon, lat, lon, 1e-10 if fixed else 0.0)
        loss = (d - 0.3).pow(2).sum()
        opt.zero_grad(set_to_none=True)
        loss.backward()
        opt.step()
        return loss

    return net, step


def t64(values, grad=False):
    return torch.tensor(values, dtype=torch.float64, requires_grad=grad)


def truth():
    la, lo = t64([0.7, -0.2], True), t64([0.4, 1.1], True)
    lat, lon = t64([0.5, -0.1]), t64([0.1, 1.0])

    def point(a, b):
        return torch.stack([a.cos() * b.cos(), a.cos() * b.sin(), a.sin()], -1)

    d = 2 * torch.asin((point(la, lo) - point(lat, lon)).norm(dim=-1) / 2)
    ga, go = torch.autograd.grad((d - 0.3).pow(2).sum(), (la, lo))
    nan = t64([float("nan")])
    return {"lat": torch.cat([nan, ga]), "lon": torch.cat([nan, go])}
