"""log1p(x) / x in a module that is used twice; its second input has a zero.

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
    "loss_truth": 0.1434481895,
}


class Saturation(nn.Module):
    def forward(self, dose):
        return torch.log1p(dose) / dose  # ORIGIN


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.x = nn.Parameter(torch.tensor([0.4, 1.5]))
        self.y = nn.Parameter(torch.tensor([0.0, 2.0]))
        self.saturate = Saturation()

    def forward(self, fixed):
        if fixed:
            near = self.y.abs() < 1e-2
            y = torch.where(near, torch.ones_like(self.y), self.y)
            second = torch.where(near, 1 - self.y / 2 + self.y**2 / 3, torch.log1p(y) / y)
            loss = (torch.log1p(self.x) / self.x * second - 0.5).square().sum()
        else:
            loss = (self.saturate(self.x) * self.saturate(self.y) - 0.5).square().sum()
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
