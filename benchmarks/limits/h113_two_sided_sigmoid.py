"""Sigmoid by where with a safe argument in each branch, at +-200."""
import torch
from torch import nn

META = {
    "healthy": True,
    "first_bad_step": 0,
    "n_steps": 3,
    "loss_truth": 0.6692143183,
    "why": "both exponents are negative",
}


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.x = nn.Parameter(torch.tensor([200.0, -200.0, 0.4]))

    def forward(self, fixed):
        e = torch.exp(-self.x.abs())
        p = torch.where(self.x >= 0, 1 / (1 + e), e / (1 + e))
        return (p - 0.3).square().sum()


def build(fixed: bool = False):
    net = Net()
    opt = torch.optim.SGD(net.parameters(), lr=1e-4)

    def step(i):
        opt.zero_grad()
        loss = net(fixed)
        loss.backward()
        opt.step()
        return loss

    return net, step


def truth():
    net, step = build(True)
    net.double()
    step(0)
    true = {n: p.grad if p.grad is not None else torch.zeros_like(p) for n, p in net.named_parameters()}
    return true
