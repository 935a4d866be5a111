"""Rotation head with quaternions: a dead feature gives the zero quaternion, normalised by hand."""
import torch
from torch import nn

META = {
    "origin_op": "div", "phase": "forward", "cause": "norm-at-zero", "symptom": "loss-nan",
    "also_causes": ["div-by-zero"], "first_bad_step": 3, "n_steps": 5, "fix": "F.normalize, or an offset towards the identity",
}


class Quaternion:
    def __init__(self, wxyz):
        self.wxyz = wxyz

    def unit(self, offset=None):
        q = self.wxyz if offset is None else self.wxyz + offset
        return Quaternion(q / q.norm(dim=-1, keepdim=True))  # ORIGIN

    def rotate(self, v):
        w, u = self.wxyz[..., :1], self.wxyz[..., 1:]
        t = 2 * torch.linalg.cross(u, v)
        return v + w * t + torch.linalg.cross(u, t)


class PoseNet(nn.Module):
    def __init__(self, offset):
        super().__init__()
        self.offset = offset
        self.body = nn.Sequential(nn.Linear(6, 16, bias=False), nn.ReLU(), nn.Linear(16, 4, bias=False))

    def forward(self, feat, pts):
        return Quaternion(self.body(feat)).unit(self.offset).rotate(pts)


def build(fixed=False):
    torch.manual_seed(69)
    net = PoseNet(torch.tensor([1e-3, 0, 0, 0]) if fixed else None)
    opt = torch.optim.Adam(net.parameters(), lr=1e-3)
    gen = torch.Generator().manual_seed(70)

    def step(i):
        feat = torch.randn(6, 6, generator=gen)
        if i >= 3:
            feat[2] = 0  # the detector lost the object
        pts = torch.randn(6, 3, generator=gen)
        loss = nn.functional.mse_loss(net(feat, pts), pts.roll(1, -1))
        opt.zero_grad()
        loss.backward()
        opt.step()
        return loss

    return net, step
