"""Dice score of an image with neither target nor prediction: 0 / 0; without a target it is 0 whatever is predicted.

Source: well-known fault
"""
import torch
from torch import nn

META = {
    "origin_op": "div",
    "phase": "forward",
    "cause": "zero-divisor",
    "symptom": "loss-nan",
    "first_bad_step": 0,
    "n_steps": 2,
    "kind": "removable",
    "loss_truth": 0.7096774194,
}


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.w = nn.Parameter(torch.tensor([[-0.4, -0.7, -0.1], [0.9, 0.2, -0.3]]))
        self.register_buffer('target', torch.tensor([[0.0, 0.0, 0.0], [1.0, 0.0, 1.0]]))

    def forward(self, fixed):
        if fixed:
            p = torch.relu(self.w)
            overlap = (p * self.target).sum(1)
            dice = 2 * overlap / (p.sum(1) + self.target.sum(1)).clamp_min(1e-6)
            loss = 1 - dice.mean()
        else:
            p = torch.relu(self.w)
            overlap = (p * self.target).sum(1)
            dice = 2 * overlap / (p.sum(1) + self.target.sum(1))  # ORIGIN
            loss = 1 - dice.mean()
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
