"""(x - 1) / log(x) by sub_ and div_, with x = 1.

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
    "loss_truth": 0.7617065688,
}


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.x = nn.Parameter(torch.tensor([1.0, 2.5, 0.4]))

    def forward(self, fixed):
        if fixed:
            d = self.x - 1
            near = d.abs() < 1e-2
            safe = torch.where(near, torch.full_like(d, 0.5), d)
            level = torch.where(near, 1 + d / 2 - d**2 / 12, safe / torch.log1p(safe))
            loss = (level - 0.8).square().sum()
        else:
            level = self.x.clone()
            level.sub_(1).div_(self.x.log())  # ORIGIN
            loss = (level - 0.8).square().sum()
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
