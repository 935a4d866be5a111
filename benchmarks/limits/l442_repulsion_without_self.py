"""Coulomb repulsion over all pairs with the diagonal taken out by a mask of 0: 0 times 1 / 0.

Source: well-known fault
"""
import torch
from torch import nn

META = {
    "origin_op": "reciprocal",
    "phase": "forward",
    "cause": "zero-divisor",
    "symptom": "loss-nan",
    "first_bad_step": 0,
    "n_steps": 2,
    "kind": "masked",
    "loss_truth": 5.193152352,
}


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.x = nn.Parameter(torch.tensor([[0.0, 0.0], [1.0, 0.5], [-0.4, 0.9]]))

    def forward(self, fixed):
        if fixed:
            i, j = torch.tensor([0, 0, 1]), torch.tensor([1, 2, 2])
            loss = 2 * (self.x[i] - self.x[j]).pow(2).sum(-1).rsqrt().sum()
        else:
            offset = self.x[:, None] - self.x[None]
            distance = offset.pow(2).sum(-1).sqrt()
            loss = ((1 - torch.eye(3)) / distance).sum()  # ORIGIN
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
