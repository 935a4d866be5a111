"""Cosine embedding loss by hand for a row of zeros that padding leaves, weighted by the mask.

Source: well-known fault
"""

import torch
from torch import nn

META = {
    "origin_op": "sqrt",
    "phase": "forward",
    "cause": "where-grad-trap",
    "symptom": "grad-nan",
    "first_bad_step": 0,
    "n_steps": 2,
    "kind": "masked",
    "loss_truth": 1.142337911,
}


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.a = nn.Parameter(torch.tensor([[0.0, 0.0], [0.4, -0.7]]))
        self.b = nn.Parameter(torch.tensor([[0.5, 0.1], [0.3, 0.2]]))

    def forward(self, fixed):
        mask = torch.tensor([0.0, 1.0])
        dot = (self.a * self.b).sum(1)
        if fixed:
            na = torch.where(mask[:, None] > 0, self.a, torch.ones_like(self.a)).norm(dim=1)
        else:
            na = torch.sqrt((self.a**2).sum(1))  # ORIGIN
        cos = dot / (na * self.b.norm(dim=1))
        return torch.where(mask > 0, (1 - cos) ** 2, torch.zeros_like(cos)).sum() / mask.sum()


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
