"""x tanh(log(1 + e^x)) at x = 100.

Source: well-known fault
"""
import torch
from torch import nn

META = {
    "origin_op": "exp",
    "phase": "backward",
    "cause": "exp-overflow",
    "symptom": "grad-nan",
    "first_bad_step": 0,
    "n_steps": 2,
    "kind": "overflow",
    "loss_truth": 82.97749691,
}


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.x = nn.Parameter(torch.tensor([100.0, 0.5, -2.0]))

    def act(self, x):
        return x * torch.tanh(torch.log(1 + torch.exp(x)))  # ORIGIN

    def forward(self, fixed):
        if fixed:
            y = self.x * torch.tanh(torch.nn.functional.softplus(self.x))
            loss = (y / 10 - 1).square().sum()
        else:
            y = self.act(self.x)
            loss = (y / 10 - 1).square().sum()
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
