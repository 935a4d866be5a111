"""Graph convolution normalised by degree^(-1/2), where the infinite one of a node without edges is
set to 0 afterwards.

Source: well-known fault
"""

import torch
from torch import nn

META = {
    "origin_op": "pow",
    "phase": "backward",
    "cause": "pow",
    "symptom": "grad-nan",
    "first_bad_step": 0,
    "n_steps": 2,
    "kind": "masked",
    "loss_truth": 0.7700594402,
}


def normalise(adjacency):
    degree = adjacency.sum(1)
    inv = degree.pow(-0.5)  # ORIGIN
    inv = inv.masked_fill(inv == float("inf"), 0.0)
    return inv[:, None] * adjacency * inv[None, :]


class GCN(nn.Module):
    def __init__(self):
        super().__init__()
        self.edge = nn.Parameter(torch.tensor([0.5, -0.2, 0.9, 0.4])[:, None] * torch.ones(4))
        self.weight = nn.Parameter(torch.tensor([[0.5], [-0.8]]))

    def forward(self, x, n):
        linked = torch.tensor([[0, 1, 1, 0], [1, 0, 1, 0], [1, 1, 0, 0], [0, 0, 0, 0]])
        a = linked[:n, :n] * torch.exp(self.edge[:n, :n])
        return normalise(a) @ x @ self.weight


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.gcn = GCN()

    def forward(self, fixed):
        x = torch.tensor([[1.0, 0.2], [0.5, 0.4], [-0.3, 0.9], [0.7, 0.7]])
        y = torch.tensor([0.3, 0.2, 0.1, 0.4])
        if fixed:
            return (self.gcn(x[:3], 3).squeeze(1) - y[:3]).pow(2).sum() + 0.16
        return (self.gcn(x, 4).squeeze(1) - y).pow(2).sum()


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
