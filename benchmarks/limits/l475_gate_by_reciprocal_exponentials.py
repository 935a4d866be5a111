"""A gate 1 / (1 + exp(-x)) times its complement, exp(-x) / (1 + exp(-x))^2, at x = -100.

Source: well-known fault
"""
import torch
from torch import nn

META = {
    "origin_op": "div",
    "phase": "forward",
    "cause": "exp-overflow",
    "symptom": "loss-nan",
    "first_bad_step": 0,
    "n_steps": 2,
    "kind": "overflow",
    "loss_truth": 0.3452543311,
}


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.x = nn.Parameter(torch.tensor([-100.0, 0.4, 2.0]))

    def forward(self, fixed):
        if fixed:
            loss = (torch.sigmoid(self.x) * torch.sigmoid(-self.x)).sum()
        else:
            e = torch.exp(-self.x)
            loss = (e / (1 + e) ** 2).sum()  # ORIGIN
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
