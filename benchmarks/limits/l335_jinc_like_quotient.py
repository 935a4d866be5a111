"""I1(x) / x of a circular aperture at the centre: 1/2.

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
    "loss_truth": 4.925444742,
}


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.x = nn.Parameter(torch.tensor([0.0, 0.8, 2.0]))

    def forward(self, fixed):
        if fixed:
            near = self.x.abs() < 1e-2
            x = torch.where(near, torch.ones_like(self.x), self.x)
            response = torch.where(near, 0.5 + self.x**2 / 16, torch.special.i1(x) / x)
            loss = (response * torch.tensor([0.5, 1.0, 0.2]) + response.square()).sum() + self.x.sum()
        else:
            response = torch.special.i1(self.x) / self.x  # ORIGIN
            loss = (response * torch.tensor([0.5, 1.0, 0.2]) + response.square()).sum() + self.x.sum()
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
