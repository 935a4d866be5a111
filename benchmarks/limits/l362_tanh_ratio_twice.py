"""x.tanh().div(x) twice in one line, with x = 0.

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
    "loss_truth": 4.55197951,
}


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.x = nn.Parameter(torch.tensor([0.0, 0.7, -1.5]))

    def forward(self, fixed):
        if fixed:
            near = self.x.abs() < 1e-2
            x = torch.where(near, torch.ones_like(self.x), self.x)
            t = torch.where(near, 1 - self.x**2 / 3, x.tanh() / x)
            loss = (t + (self.x + 1) * t.square()).sum()
        else:
            loss = (self.x.tanh().div(self.x) + self.x.add(1) * self.x.tanh().div(self.x).square()).sum()  # ORIGIN
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
