"""Logarithm of the unit quaternion: acos(w) / sqrt(1 - w**2) at w = 1.

Source: well-known fault (rotation losses)
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
    "kind": "removable",
    "loss_truth": 1.093457003,
}


class Rotation(nn.Module):
    def __init__(self):
        super().__init__()
        self.w = nn.Parameter(torch.tensor([1.0, 0.5]))

    def forward(self, fixed):
        if fixed:
            e = 1 - self.w
            near = e < 1e-2
            safe = torch.where(near, torch.full_like(e, 0.5), self.w)
            series = 1 + e / 3 + 2 * e**2 / 15 + 2 * e**3 / 35 + 8 * e**4 / 315
            scale = 2 * torch.where(near, series, torch.acos(safe) / torch.sqrt(1 - safe**2))
        else:
            scale = 2 * torch.acos(self.w) / torch.sqrt(1 - self.w**2)  # ORIGIN
        loss = (scale - 1.5).pow(2).sum()
        return loss


def build(fixed: bool = False):
    net = Rotation()
    opt = torch.optim.SGD(net.parameters(), lr=1e-5)

    def step(i):
        opt.zero_grad()
        loss = net(fixed)
        loss.backward()
        opt.step()
        return loss

    return net, step


def truth():
    w = torch.tensor([1.0, 0.5], dtype=torch.float64, requires_grad=True)
    e = 1 - w
    near = e < 1e-2
    safe = torch.where(near, torch.full_like(e, 0.5), w)
    series = 1 + e / 3 + 2 * e**2 / 15 + 2 * e**3 / 35 + 8 * e**4 / 315
    scale = 2 * torch.where(near, series, torch.acos(safe) / torch.sqrt(1 - safe**2))
    loss = (scale - 1.5).pow(2).sum()
    found = torch.autograd.grad(loss, [w], allow_unused=True)
    true = {name: torch.zeros_like(p) if g is None else g for name, p, g in zip(["w"], [w], found)}
    return true
