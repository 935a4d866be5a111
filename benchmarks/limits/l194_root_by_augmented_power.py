"""A root taken by an augmented power, with entries that a weight removes.

Source: well-known fault (masked distances)
"""
import torch
from torch import nn

META = {
    "origin_op": "pow_",
    "phase": "backward",
    "cause": "pow-fraction-at-zero",
    "symptom": "grad-nan",
    "first_bad_step": 0,
    "n_steps": 2,
    "kind": "masked",
    "loss_truth": 3.460882657,
}


class Distances(nn.Module):
    def __init__(self):
        super().__init__()
        self.x = nn.Parameter(torch.tensor([0.0, 0.4, 2.0]))

    def forward(self, fixed):
        weight = torch.tensor([0.0, 1.0, 2.0])
        if fixed:
            root = torch.sqrt(torch.where(weight > 0, self.x, torch.ones_like(self.x)))
        else:
            root = self.x * 1.0
            root **= 0.5  # ORIGIN
        loss = (weight * root).sum()
        return loss


def build(fixed: bool = False):
    net = Distances()
    opt = torch.optim.SGD(net.parameters(), lr=1e-3)

    def step(i):
        opt.zero_grad()
        loss = net(fixed)
        loss.backward()
        opt.step()
        return loss

    return net, step


def truth():
    x = torch.tensor([0.0, 0.4, 2.0], dtype=torch.float64, requires_grad=True)
    weight = torch.tensor([0.0, 1.0, 2.0])
    root = torch.sqrt(torch.where(weight > 0, x, torch.ones_like(x)))
    loss = (weight * root).sum()
    found = torch.autograd.grad(loss, [x], allow_unused=True)
    true = {name: torch.zeros_like(p) if g is None else g for name, p, g in zip(["x"], [x], found)}
    return true
