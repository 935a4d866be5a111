"""An angle whose cosine is 1, behind torch.where.

Source: well-known fault (geodesic losses with a branch)
"""
import torch
from torch import nn

META = {
    "origin_op": "acos",
    "phase": "backward",
    "cause": "where-grad-trap",
    "symptom": "grad-nan",
    "first_bad_step": 0,
    "n_steps": 2,
    "kind": "masked",
    "loss_truth": 5.532584026,
}


class Geodesic(nn.Module):
    def __init__(self):
        super().__init__()
        self.d = nn.Parameter(torch.tensor([1.0, 0.3, -0.4]))

    def forward(self, fixed):
        moved = torch.tensor([False, True, True])
        if fixed:
            angle = torch.where(moved, torch.acos(torch.where(moved, self.d, torch.zeros_like(self.d))), 0.0)
        else:
            angle = torch.where(moved, torch.acos(self.d), 0.0)  # ORIGIN
        loss = angle.pow(2).sum()
        return loss


def build(fixed: bool = False):
    net = Geodesic()
    opt = torch.optim.SGD(net.parameters(), lr=1e-3)

    def step(i):
        opt.zero_grad()
        loss = net(fixed)
        loss.backward()
        opt.step()
        return loss

    return net, step


def truth():
    d = torch.tensor([1.0, 0.3, -0.4], dtype=torch.float64, requires_grad=True)
    moved = torch.tensor([False, True, True])
    angle = torch.where(moved, torch.acos(torch.where(moved, d, torch.zeros_like(d))), 0.0)
    loss = angle.pow(2).sum()
    found = torch.autograd.grad(loss, [d], allow_unused=True)
    true = {name: torch.zeros_like(p) if g is None else g for name, p, g in zip(["d"], [d], found)}
    return true
