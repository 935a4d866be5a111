"""Mixture responsibilities: exponentials divided by their sum in place, on a buffer of zeros.

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
    "loss_truth": 227,
}


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.mu = nn.Parameter(torch.tensor([0.0, 15.0]))

    def forward(self, fixed):
        x = torch.tensor([1.0, 14.0, 30.0])
        log = x[:, None] * self.mu - self.mu**2 / 2
        if fixed:
            r = torch.softmax(log, dim=1)
        else:
            r = torch.zeros(3, 2)
            r = r + log.exp()  # ORIGIN
            r = r / r.sum(dim=1, keepdim=True)
        return (r[:, 0] * (x - self.mu[0]) ** 2 + r[:, 1] * (x - self.mu[1]) ** 2).sum()


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
    net, step = build(True)
    net.double()
    step(0)
    true = {name: p.grad for name, p in net.named_parameters()}
    return true
