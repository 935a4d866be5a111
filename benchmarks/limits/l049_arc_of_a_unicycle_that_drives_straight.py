"""Unicycle rollout with the exact arc of a constant turn rate, vmapped over candidates: driving straight means w = 0.

Source: well-known fault (v / w (sin(theta + w dt) - sin theta) in a motion model)
"""
import torch
from torch import nn
from torch.func import vmap

META = {
    "origin_op": "div",
    "phase": "forward",
    "cause": "div-by-zero",
    "symptom": "loss-nan",
    "first_bad_step": 0,
    "n_steps": 2,
    "kind": "removable",
    "loss_truth": 0.4724766954,
    "fix": "v dt sinc(w dt / 2) cos(theta + w dt / 2)",
}


DT = 0.5


def arc(v, w, th, fixed):
    if fixed:
        chord = v * DT * torch.sinc(w * DT / (2 * torch.pi))
        return chord * torch.cos(th + w * DT / 2), chord * torch.sin(th + w * DT / 2)
    r = v / w  # ORIGIN
    return r * (torch.sin(th + w * DT) - torch.sin(th)), r * (torch.cos(th) - torch.cos(th + w * DT))


def rollout(controls, fixed):
    x = y = th = torch.zeros(())
    for v, w in zip(controls[0], controls[1]):
        dx, dy = arc(v, w, th, fixed)
        x, y, th = x + dx, y + dy, th + w * DT
    return torch.stack([x, y])


class Planner(nn.Module):
    def __init__(self):
        super().__init__()
        self.v = nn.Parameter(torch.tensor([[1.0, 1.2, 0.8], [0.5, 1.0, 1.5]]))
        self.w = nn.Parameter(torch.tensor([[0.4, 0.0, -0.6], [0.0, 0.0, 0.3]]))

    def forward(self, fixed):
        return vmap(lambda c: rollout(c.unbind(0), fixed))(torch.stack([self.v, self.w], 1))


def build(fixed: bool = False):
    planner = Planner()
    opt = torch.optim.SGD(planner.parameters(), lr=1e-2)
    goal = torch.tensor([1.0, 0.6])

    def step(i):
        opt.zero_grad()
        loss = (planner(fixed) - goal).pow(2).sum(-1).mean()
        loss.backward()
        opt.step()
        return loss

    return planner, step


def truth():
    # the arc is the integral of v (cos, sin)(theta + w s) over s: Gauss-Legendre
    import numpy as np

    f8 = torch.float64
    node, weight = (torch.tensor(a, dtype=f8) for a in np.polynomial.legendre.leggauss(12))
    s, weight = (node + 1) * DT / 2, weight * DT / 2
    v = torch.tensor([[1.0, 1.2, 0.8], [0.5, 1.0, 1.5]], dtype=f8, requires_grad=True)
    w = torch.tensor([[0.4, 0.0, -0.6], [0.0, 0.0, 0.3]], dtype=f8, requires_grad=True)
    start = (w.cumsum(1) - w) * DT
    angle = start[..., None] + w[..., None] * s
    x = (v * (angle.cos() * weight).sum(-1)).sum(1)
    y = (v * (angle.sin() * weight).sum(-1)).sum(1)
    loss = ((x - 1.0) ** 2 + (y - 0.6) ** 2).mean()
    gv, gw = torch.autograd.grad(loss, (v, w))
    return {"v": gv, "w": gw}
