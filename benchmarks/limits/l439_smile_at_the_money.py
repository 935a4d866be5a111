"""SABR: z / log((sqrt(1 - 2 r z + z^2) + z - r) / (1 - r)) at z = 0.

Source: well-known fault
"""
import torch
from torch import nn

META = {
    "origin_op": "div",
    "phase": "forward",
    "cause": "zero-divisor",
    "symptom": "loss-nan",
    "first_bad_step": 0,
    "n_steps": 2,
    "kind": "removable",
    "loss_truth": 3.208128036,
}


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.z = nn.Parameter(torch.tensor([0.0, 0.6, -0.4]))
        self.rho = -0.3

    def forward(self, fixed):
        if fixed:
            near = self.z == 0
            z = torch.where(near, 1.0, self.z)
            chi = torch.log((torch.sqrt(1 - 2 * self.rho * z + z**2) + z - self.rho) / (1 - self.rho))
            loss = torch.where(near, 1 - self.rho * self.z / 2, z / chi).pow(2).sum()
        else:
            chi = torch.log((torch.sqrt(1 - 2 * self.rho * self.z + self.z**2) + self.z - self.rho) / (1 - self.rho))
            loss = (self.z / chi).pow(2).sum()  # ORIGIN
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
