"""x / |x| log(1 + |x|) at 0, where its slope is 1.

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
    "loss_truth": 0.8749111742,
}


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.x = nn.Parameter(torch.tensor([0.0, 1.5, -0.4]))

    def forward(self, fixed):
        if fixed:
            small = self.x.abs() < 1e-3
            x = torch.where(small, torch.ones_like(self.x), self.x)
            y = torch.where(small, self.x * (1 - self.x.abs() / 2), x.sign() * torch.log1p(x.abs()))
            loss = (y - 0.3).square().sum()
        else:
            y = self.x / self.x.abs() * torch.log1p(self.x.abs())  # ORIGIN
            loss = (y - 0.3).square().sum()
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
