"""Growth (e^(k t) - 1) / k over a list of times at k = 0.

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
    "loss_truth": 9.5625,
}


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.k = nn.Parameter(torch.tensor(0.0))
        self.a = nn.Parameter(torch.tensor([0.5, 1.0, 2.0]))

    def forward(self, fixed):
        if fixed:
            t = torch.tensor([0.5, 1.0, 2.0])
            sizes = t + self.k * t**2 / 2 + self.k**2 * t**3 / 6
            loss = (sizes * self.a - 1).square().sum()
        else:
            times = [0.5, 1.0, 2.0]
            sizes = torch.stack([torch.expm1(self.k * t) / self.k for t in times])  # ORIGIN
            loss = (sizes * self.a - 1).square().sum()
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
