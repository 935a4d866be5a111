"""Centroids by index_add with a cluster without members, weighted by its size.

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
    "kind": "masked",
    "loss_truth": 4.06,
}


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.points = nn.Parameter(torch.tensor([[0.5, 1.0], [1.5, -1.0], [2.0, 0.4]]))

    def forward(self, fixed):
        if fixed:
            p = self.points
            c0 = (p[0] + p[1]) / 2
            loss = 2 * ((c0 - 0.3) ** 2).sum() + ((p[2] - 0.3) ** 2).sum()
        else:
            label = torch.tensor([0, 0, 2])
            total = torch.zeros(3, 2).index_add(0, label, self.points)
            size = torch.zeros(3).index_add(0, label, torch.ones(3))
            centroid = total / size[:, None]  # ORIGIN
            loss = (size[:, None] * (centroid - 0.3) ** 2).sum()
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
    loss = net(True)
    grads = torch.autograd.grad(loss, list(net.parameters()))
    out = {n: g for (n, _), g in zip(net.named_parameters(), grads)}
    return out
