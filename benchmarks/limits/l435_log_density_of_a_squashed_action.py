"""A policy squashes its sample by tanh in one method; another takes the atanh of it back by logarithms.

Source: well-known fault
"""
import torch
from torch import nn

META = {
    "origin_op": "div",
    "phase": "forward",
    "cause": "zero-divisor",
    "symptom": "loss-inf",
    "first_bad_step": 0,
    "n_steps": 2,
    "kind": "overflow",
    "loss_truth": 22.62833333,
}


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.mean = nn.Parameter(torch.tensor([12.0, 0.4, -0.7]))

    def act(self):
        u = self.mean + 0.5
        return torch.tanh(u)

    def log_prob(self, action):
        u = 0.5 * torch.log((1 + action) / (1 - action))  # ORIGIN
        return -0.5 * (u - 0.9) ** 2

    def forward(self, fixed):
        if fixed:
            u = self.mean + 0.5
            loss = (0.5 * (u - 0.9) ** 2).mean()
        else:
            action = self.act()
            loss = -self.log_prob(action).mean()
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
