"""Discrete hazards 1 - exp(-rate) in a loop over time; a rate of 1e-9 leaves log(0).

Source: well-known fault
"""
import torch
from torch import nn

META = {
    "origin_op": "log",
    "phase": "forward",
    "cause": "log-of-zero",
    "symptom": "loss-inf",
    "first_bad_step": 0,
    "n_steps": 2,
    "kind": "overflow",
    "loss_truth": 7.397093729,
}


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.rate = nn.Parameter(torch.tensor([1e-9, 0.4, 1.2]))

    def forward(self, fixed):
        if fixed:
            loss = -torch.log(-torch.expm1(-self.rate)).sum() / 3
        else:
            total = torch.zeros(())
            for t in range(3):
                died = 1 - torch.exp(-self.rate[t])
                total = total - torch.log(died)  # ORIGIN
            loss = total / 3
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
