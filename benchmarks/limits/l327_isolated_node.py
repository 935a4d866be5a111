"""Inverse square root of the degree of a node without edges, times its empty row.

Source: well-known fault
"""
import torch
from torch import nn

META = {
    "origin_op": "pow",
    "phase": "forward",
    "cause": "pow-fraction-at-zero",
    "symptom": "loss-nan",
    "first_bad_step": 0,
    "n_steps": 2,
    "kind": "masked",
    "loss_truth": 1.1080248422905763,
}


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.edge = nn.Parameter(torch.tensor([[0.0, 0.0, 0.0], [0.0, 0.7, 0.4], [0.0, 0.4, 0.9]]))

    def forward(self, fixed):
        if fixed:
            link = torch.tensor([[0.0, 0.0, 0.0], [0.0, 1.0, 1.0], [0.0, 1.0, 1.0]])
            a = self.edge * link
            deg = a.sum(1)
            scale = torch.where(deg > 0, deg, torch.ones_like(deg)).pow(-0.5)
            loss = (scale[:, None] * a * scale[None]).square().sum()
        else:
            link = torch.tensor([[0.0, 0.0, 0.0], [0.0, 1.0, 1.0], [0.0, 1.0, 1.0]])
            a = self.edge * link
            deg = a.sum(1)
            scale = deg.pow(-0.5)  # ORIGIN
            loss = (scale[:, None] * a * scale[None]).square().sum()
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
