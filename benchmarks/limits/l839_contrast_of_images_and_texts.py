"""Contrastive loss of images and texts in both directions by exponentials, with a learned scale of
200.

Source: well-known fault
"""

import torch
import torch.nn.functional as F
from torch import nn

META = {
    "origin_op": "exp",
    "phase": "forward",
    "cause": "exp-overflow",
    "symptom": "loss-nan",
    "first_bad_step": 0,
    "n_steps": 2,
    "kind": "overflow",
    "loss_truth": 0.5199532254,
}


class Contrastive(nn.Module):
    def __init__(self):
        super().__init__()
        self.log_scale = nn.Parameter(torch.tensor(5.3))

    def logits(self, a, b):
        a, b = F.normalize(a, dim=-1), F.normalize(b, dim=-1)
        return self.log_scale.exp() * a @ b.t()

    def forward(self, a, b):
        e = torch.exp(self.logits(a, b))  # ORIGIN
        rows = torch.log(e.diagonal() / e.sum(1)).mean()
        columns = torch.log(e.diagonal() / e.sum(0)).mean()
        return -(rows + columns) / 2


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.a = nn.Parameter(torch.tensor([[1.0, 0.2], [0.95, 0.3]]))
        self.b = nn.Parameter(torch.tensor([[0.9, 0.25], [0.9, 0.3]]))
        self.loss = Contrastive()

    def forward(self, fixed):
        if fixed:
            z = self.loss.logits(self.a, self.b)
            y = torch.arange(2)
            return (F.cross_entropy(z, y) + F.cross_entropy(z.t(), y)) / 2
        return self.loss(self.a, self.b)


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
