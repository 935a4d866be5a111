"""The angle between predicted and true rotation has an infinite slope where both agree; GradScaler takes it for overflow and skips for ever."""

import torch
from torch import nn

META = {
    "origin_op": "acos",
    "phase": "backward",
    "cause": "inverse-function-at-edge",
    "symptom": "grad-nan",
    "first_bad_step": 0,
    "n_steps": 14,
    "fix": "clamp the cosine to 1 - 1e-6, or use atan2 of the sine and cosine",
}


class PoseNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(9, 32), nn.SiLU(), nn.Linear(32, 3))
        nn.init.zeros_(self.body[-1].weight)
        nn.init.zeros_(self.body[-1].bias)

    def forward(self, x):
        return self.body(x)


def rotation(v):
    zero = torch.zeros_like(v[:, 0])
    skew = torch.stack([zero, -v[:, 2], v[:, 1], v[:, 2], zero, -v[:, 0], -v[:, 1], v[:, 0], zero], -1)
    return torch.linalg.matrix_exp(skew.view(-1, 3, 3))


def build(fixed: bool = False):
    torch.manual_seed(421)
    net = PoseNet()
    opt = torch.optim.Adam(net.parameters(), lr=1e-3)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10)
    gen = torch.Generator().manual_seed(521)
    edge = 1 - 1e-6 if fixed else 1.0

    def step(i):
        x = torch.randn(8, 9, generator=gen)
        angles = 0.2 * x[:, :3].clone()
        angles[:2] = 0.0  # two frames without motion
        opt.zero_grad()
        with torch.autocast("cpu", dtype=torch.float16):
            v = net(x)
        relative = rotation(v.float()).mT @ rotation(angles)
        cosine = (relative.diagonal(dim1=1, dim2=2).sum(-1) - 1) / 2
        loss = torch.acos(cosine.clamp(-1.0, edge)).mean()  # ORIGIN
        scaler.scale(loss).backward()
        scaler.step(opt)
        scaler.update()
        return loss

    return net, step
