"""Mean phasor (exp(i x) - 1) / (i x) of a delay of 0.

Source: well-known fault
"""
import torch
from torch import nn

META = {
    "origin_op": "div",
    "phase": "forward",
    "cause": "zero-divisor",
    "symptom": "loss-nan",
    "first_bad_step": 0,
    "n_steps": 2,
    "kind": "removable",
    "loss_truth": 2.816802195,
}


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.x = nn.Parameter(torch.tensor([0.0, 0.7, 2.2]))

    def forward(self, fixed):
        if fixed:
            near = self.x == 0
            x = torch.where(near, 1.0, self.x)
            real = torch.where(near, 1.0 - self.x**2 / 6, torch.sin(x) / x)
            imag = torch.where(near, self.x / 2, (1 - torch.cos(x)) / x)
            loss = (real + 0.5 * imag).sum()
        else:
            phasor = (torch.exp(1j * self.x) - 1) / (1j * self.x)  # ORIGIN
            loss = (phasor.real + 0.5 * phasor.imag).sum()
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
