"""Bundle adjustment with inverse-depth landmarks: a new landmark starts at infinity, inverse depth 0, and the point ray / 0 is projected into the second view."""
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
    "form": "several variables",
    "loss_truth": 0.102531713,
    "fix": "project ray + rho (c - t): the projection does not depend on scale, and is smooth at rho = 0",
}


class Scene(nn.Module):
    def __init__(self):
        super().__init__()
        self.rho = nn.Parameter(torch.tensor([0.0, 0.2, 0.5]))
        self.t = nn.Parameter(torch.tensor([0.3, -0.1, 0.05]))
        self.focal = nn.Parameter(torch.tensor(1.5))
        self.register_buffer("rays", torch.tensor([[0.1, 0.2, 1.0], [-0.3, 0.1, 1.0], [0.4, -0.2, 1.0]]))

    def forward(self, fixed):
        if fixed:
            near = self.rays - self.rho[:, None] * self.t
            return self.focal * near[:, :2] / near[:, 2:]
        p = self.rays / self.rho[:, None] - self.t  # ORIGIN
        return self.focal * p[:, :2] / p[:, 2:]


def build(fixed: bool = False):
    scene = Scene()
    opt = torch.optim.Adam([{"params": [scene.rho, scene.t], "lr": 1e-3}, {"params": [scene.focal], "lr": 1e-4}])
    seen = torch.tensor([[0.1, 0.36], [-0.6, 0.2], [0.38, -0.2]])

    def step(i):
        opt.zero_grad()
        loss = nn.functional.smooth_l1_loss(scene(fixed), seen, beta=0.05, reduction="sum")
        loss.backward()
        opt.step()
        return loss

    return scene, step


def truth():
    def c(v):
        return torch.tensor(v, dtype=torch.float64)

    rho, t, f = c([0.0, 0.2, 0.5]), c([0.3, -0.1, 0.05]), 1.5
    m, seen = c([[0.1, 0.2], [-0.3, 0.1], [0.4, -0.2]]), c([[0.1, 0.36], [-0.6, 0.2], [0.38, -0.2]])
    r = rho[:, None]
    top, depth = m - r * t[:2], 1 - r * t[2]
    ratio = top / depth
    off = f * ratio - seen
    loss = torch.where(off.abs() < 0.05, off**2 / 0.1, off.abs() - 0.025).sum()
    e = torch.where(off.abs() < 0.05, off / 0.05, torch.sign(off))
    d_rho = (e * f * (-t[:2] + ratio * t[2]) / depth).sum(1)
    d_xy = -(e * f * r / depth).sum(0)
    d_z = (e * f * ratio * r / depth).sum()
    return {"rho": d_rho, "t": torch.cat([d_xy, d_z[None]]), "focal": (e * ratio).sum()}
