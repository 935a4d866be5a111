"""Entropic risk log(mean(e^(k x))) / k at k = 0: the mean.

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
    "loss_truth": 0.36,
}


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.k = nn.Parameter(torch.tensor(0.0))
        self.x = nn.Parameter(torch.tensor([0.5, 1.0, -0.3]))

    def forward(self, fixed):
        if fixed:
            m = self.x.mean()
            risk = m + self.k * (self.x - m).square().mean() / 2
            loss = (risk - 1).square()
        else:
            risk = torch.log(torch.exp(self.k * self.x).mean()) / self.k  # ORIGIN
            loss = (risk - 1).square()
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
