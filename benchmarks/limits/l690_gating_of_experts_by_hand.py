"""Mixture of experts, whose gates are exp(g) / sum exp(g) as a helper computes them for any
dimension.

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
    "loss_truth": 0.0763106964,
}


def normalise(scores, dim):
    weights = torch.exp(scores)  # ORIGIN
    return weights / weights.sum(dim, keepdim=True)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.gate = nn.Linear(2, 3, bias=False)
        self.experts = nn.Linear(2, 3, bias=False)
        with torch.no_grad():
            self.gate.weight.copy_(torch.tensor([[40.0, 10.0], [39.0, 11.0], [-2.0, 1.0]]))
            self.experts.weight.copy_(torch.tensor([[0.5, 0.2], [-0.4, 0.8], [0.1, 0.1]]))

    def forward(self, fixed):
        x = torch.tensor([[2.2, 1.3], [0.1, -0.2]])
        if fixed:
            g = torch.softmax(self.gate(x), 1)
        else:
            g = normalise(self.gate(x), dim=1)
        y = (g * self.experts(x)).sum(1)
        return (y - torch.tensor([1.0, 0.2])).pow(2).sum()


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
