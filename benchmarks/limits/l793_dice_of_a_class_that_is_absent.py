"""Dice loss of each class, averaged over the classes that are present by a weight of 0: the absent
one is 0 / 0.

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
    "loss_truth": 0.157784744,
}


def dice_loss(prob, target):
    inter = (prob * target).sum(1)
    total = prob.sum(1) + target.sum(1)
    dice = 2 * inter / total  # ORIGIN
    present = (target.sum(1) > 0).float()
    return 1 - (dice * present).sum() / present.sum()


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.score = nn.Parameter(
            torch.tensor([[0.5, 0.8, -0.3], [0.2, 1.3, 0.4], [-1.0, -0.5, -2.0]])
        )

    def forward(self, fixed):
        target = torch.tensor([[1.0, 1.0, 0.0], [0.0, 1.0, 0.0], [0.0, 0.0, 0.0]])
        prob = torch.relu(self.score)
        if fixed:
            return dice_loss(prob[:2], target[:2])
        return dice_loss(prob, target)


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
