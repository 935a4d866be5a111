"""x^p as exp(p log x), with x = 0 and p = 2: the gradient is 0 times inf.

Source: well-known fault
"""
import torch
from torch import nn

META = {
    "origin_op": "log",
    "phase": "forward",
    "cause": "log-of-zero",
    "symptom": "grad-nan",
    "first_bad_step": 0,
    "n_steps": 2,
    "kind": "removable",
    "loss_truth": 5.9817,
}


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.x = nn.Parameter(torch.tensor([0.0, 0.6, 1.7]))
        self.p = nn.Parameter(torch.tensor(2.0))

    def forward(self, fixed):
        if fixed:
            y = self.x**self.p
            loss = (y - 0.5).square().sum()
        else:
            y = torch.exp(self.p * torch.log(self.x))  # ORIGIN
            loss = (y - 0.5).square().sum()
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
