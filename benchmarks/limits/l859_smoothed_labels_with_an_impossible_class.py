"""Cross entropy with smoothed labels; an impossible class has a score of -inf and a label of 0.

Source: well-known fault
"""

import torch
from torch import nn

META = {
    "origin_op": "mul",
    "phase": "forward",
    "cause": "zero-times-inf",
    "symptom": "loss-nan",
    "first_bad_step": 0,
    "n_steps": 2,
    "kind": "masked",
    "loss_truth": 0.878157648,
}


class Smoothed(nn.Module):
    def forward(self, scores, label):
        return -(label * torch.log_softmax(scores, -1)).sum(-1).mean()  # ORIGIN


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.scores = nn.Parameter(torch.tensor([[0.5, 0.9, 0.3], [0.2, 0.6, -0.1]]))
        self.loss = Smoothed()

    def forward(self, fixed):
        possible = torch.tensor([[True, True, False], [True, True, True]])
        label = torch.tensor([[0.9, 0.1, 0.0], [0.1, 0.8, 0.1]])
        if fixed:
            a = -(label[0, :2] * torch.log_softmax(self.scores[0, :2], -1)).sum()
            return (a - (label[1] * torch.log_softmax(self.scores[1], -1)).sum()) / 2
        return self.loss(self.scores.masked_fill(~possible, float("-inf")), label)


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
