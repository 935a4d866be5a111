"""Symmetric normalisation d^(-1/2) A d^(-1/2) of a graph in which one node has no edge: infinity
times 0.

Source: well-known fault
"""

import torch
from torch import nn

META = {
    "origin_op": "pow",
    "phase": "forward",
    "cause": "pow",
    "symptom": "loss-nan",
    "first_bad_step": 0,
    "n_steps": 2,
    "kind": "masked",
    "loss_truth": 0.5982930214,
}


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.strength = nn.Parameter(torch.tensor(1.3))
        self.lin = nn.Linear(2, 1, bias=False)
        with torch.no_grad():
            self.lin.weight.copy_(torch.tensor([[0.5, -0.8]]))

    def forward(self, fixed):
        adjacency = torch.tensor(
            [[0.0, 1.0, 1.0, 0.0], [1.0, 0.0, 0.0, 0.0], [1.0, 0.0, 0.0, 0.0], [0.0, 0.0, 0.0, 0.0]]
        )
        x = torch.tensor([[1.0, 0.2], [0.5, 0.4], [-0.3, 0.9], [0.7, 0.7]])
        A = adjacency * torch.exp(
            -self.strength * (torch.arange(4.0)[:, None] - torch.arange(4.0)).abs()
        )
        degree = A.sum(1)
        if fixed:
            lonely = degree == 0
            d = torch.where(
                lonely,
                torch.zeros_like(degree),
                torch.where(lonely, torch.ones_like(degree), degree).pow(-0.5),
            )
        else:
            d = degree.pow(-0.5)  # ORIGIN
        h = (d[:, None] * A * d[None, :]) @ self.lin(x)
        return (h.squeeze(1) - torch.tensor([0.3, 0.2, 0.1, 0.0])).pow(2).sum()


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
