"""Concrete sample by hand at a temperature of 0.01, one row after the other.

Source: well-known fault
"""
import torch
from torch import nn

META = {
    "origin_op": "exp",
    "phase": "forward",
    "cause": "exp-overflow",
    "symptom": "loss-nan",
    "first_bad_step": 0,
    "n_steps": 2,
    "kind": "overflow",
    "loss_truth": 3.549834335,
}


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.logits = nn.Parameter(torch.tensor([[0.5, 1.5, 0.2], [0.1, 0.102, 0.05]]))
        self.register_buffer('gumbel', torch.tensor([[0.1, 0.3, 1.2], [0.2, 0.2, 0.1]]))
        self.temperature = 0.01

    def forward(self, fixed):
        if fixed:
            y = torch.softmax((self.logits + self.gumbel) / self.temperature, 1)
            loss = (y * torch.tensor([1.0, 2.0, 4.0])).sum()
        else:
            loss = 0.0
            for row, noise in zip(self.logits, self.gumbel):
                y = torch.exp((row + noise) / self.temperature)  # ORIGIN
                y = y / y.sum()
                loss = loss + (y * torch.tensor([1.0, 2.0, 4.0])).sum()
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
