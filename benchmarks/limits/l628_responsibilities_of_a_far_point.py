"""E-step by densities: a point far from every component has the density 0 in each, and the
quotient is 0 / 0.

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
    "kind": "overflow",
    "loss_truth": 14.22417811,
}


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.mu = nn.Parameter(torch.tensor([[0.0, 0.0], [2.0, 1.0]]))
        self.weight = nn.Parameter(torch.tensor([0.4, 0.6]))

    def forward(self, fixed):
        x = torch.tensor([[0.5, 0.3], [18.0, 14.0], [1.5, 1.0]])
        d2 = (x[:, None] - self.mu).pow(2).sum(-1)
        if fixed:
            r = torch.softmax(torch.log(self.weight) - 0.5 * d2, 1)
        else:
            density = self.weight * torch.exp(-0.5 * d2)
            r = density / density.sum(1, keepdim=True)  # ORIGIN
        return (r * d2).sum(1).mean() / 10


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
