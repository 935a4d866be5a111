"""A look-at camera: looking straight down, the up vector and the viewing direction are parallel."""
import torch
from torch import nn

META = {
    "origin_op": "div", "phase": "forward", "cause": "norm-at-zero", "symptom": "loss-nan",
    "also_causes": ["div-by-zero"], "first_bad_step": 2, "n_steps": 4, "fix": "another up vector when they are parallel",
}


def unit(v):
    return v / torch.linalg.vector_norm(v, dim=-1, keepdim=True)  # ORIGIN


def look_at(eye, target, tilt):
    up = torch.tensor([0.0, 0.0, 1.0]) + tilt
    forward = unit(target - eye)
    right = unit(torch.linalg.cross(forward, up.expand_as(forward)))  # ALSO
    return torch.stack([right, torch.linalg.cross(right, forward), -forward], -2)


class CameraRefiner(nn.Module):
    def __init__(self):
        super().__init__()
        self.height = nn.Parameter(torch.tensor(2.0))

    def forward(self, xy, pts, tilt):
        eye = torch.cat([xy, self.height.expand(len(xy), 1)], 1)
        r = look_at(eye, torch.zeros(3), tilt)
        cam = torch.einsum("bij,nbj->nbi", r, pts[:, None] - eye)
        return cam[..., :2] / cam[..., 2:].abs().clamp_min(0.1)


def build(fixed=False):
    torch.manual_seed(87)
    net = CameraRefiner()
    opt = torch.optim.Adam(net.parameters(), lr=1e-2)
    gen = torch.Generator().manual_seed(88)
    tilt = torch.tensor([0.01, 0.0, 0.0]) if fixed else torch.zeros(3)

    def step(i):
        xy = torch.randn(4, 2, generator=gen)
        if i == 2:
            xy[3] = 0  # the drone hovers over the target
        pts = 0.3 * torch.randn(6, 3, generator=gen)
        loss = net(xy, pts, tilt).pow(2).mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
        return loss

    return net, step
