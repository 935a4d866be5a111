"""Equidistant fisheye model atan(r) / r: the principal point has r = 0.

Source: well-known fault (camera model at the image centre)
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
    "loss_truth": 0.4746748021,
}


class Camera(nn.Module):
    def __init__(self):
        super().__init__()
        self.r = nn.Parameter(torch.tensor([0.0, 0.4, 1.1]))
        self.focal = nn.Parameter(torch.tensor(1.3))

    def forward(self, fixed):
        if fixed:
            small = torch.where(self.r.abs() < 1e-2, torch.ones_like(self.r), self.r)
            scale = torch.where(self.r.abs() < 1e-2, 1 - self.r**2 / 3 + self.r**4 / 5, torch.atan(small) / small)
        else:
            scale = torch.atan(self.r) / self.r  # ORIGIN
        loss = (self.focal * scale - 0.8).pow(2).sum()
        return loss


def build(fixed: bool = False):
    net = Camera()
    opt = torch.optim.SGD(net.parameters(), lr=1e-3)

    def step(i):
        opt.zero_grad()
        loss = net(fixed)
        loss.backward()
        opt.step()
        return loss

    return net, step


def truth():
    r = torch.tensor([0.0, 0.4, 1.1], dtype=torch.float64, requires_grad=True)
    focal = torch.tensor(1.3, dtype=torch.float64, requires_grad=True)
    small = torch.where(r.abs() < 1e-2, torch.ones_like(r), r)
    scale = torch.where(r.abs() < 1e-2, 1 - r**2 / 3 + r**4 / 5, torch.atan(small) / small)
    loss = (focal * scale - 0.8).pow(2).sum()
    dr_, dfocal_ = torch.autograd.grad(loss, [r, focal])
    return {"r": dr_, "focal": dfocal_}
