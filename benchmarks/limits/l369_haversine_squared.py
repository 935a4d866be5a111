"""Squared great-circle distance of two equal places, by asin(sqrt(h)).

Source: well-known fault
"""
import torch
from torch import nn

META = {
    "origin_op": "sqrt",
    "phase": "backward",
    "cause": "sqrt-at-zero",
    "symptom": "grad-nan",
    "first_bad_step": 0,
    "n_steps": 2,
    "kind": "removable",
    "loss_truth": 0.2095844468,
}


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.lat = nn.Parameter(torch.tensor([0.5, 0.7]))
        self.lon = nn.Parameter(torch.tensor([0.1, -0.4]))

    def forward(self, fixed):
        if fixed:
            lat, lon = torch.tensor([0.5, 0.9]), torch.tensor([0.1, 0.2])
            h = torch.sin((self.lat - lat) / 2) ** 2
            h = h + torch.cos(self.lat) * torch.cos(lat) * torch.sin((self.lon - lon) / 2) ** 2
            near = h < 1e-3
            safe = torch.where(near, torch.full_like(h, 0.5), h)
            loss = (4 * torch.where(near, h + h**2 / 3, torch.asin(torch.sqrt(safe)) ** 2)).sum()
        else:
            lat, lon = torch.tensor([0.5, 0.9]), torch.tensor([0.1, 0.2])
            h = torch.sin((self.lat - lat) / 2) ** 2
            h = h + torch.cos(self.lat) * torch.cos(lat) * torch.sin((self.lon - lon) / 2) ** 2
            d = 2 * torch.asin(torch.sqrt(h))  # ORIGIN
            loss = d.square().sum()
        return loss


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
    net, _ = build(True)
    net.double()
    found = torch.autograd.grad(net(True), list(net.parameters()))
    true = {n: g for (n, _), g in zip(net.named_parameters(), found)}
    return true
