"""Pitch from a quaternion: asin(2(wy - xz)) of a quaternion that interpolation left slightly longer than one."""

import torch
from torch import nn

META = {
    "origin_op": "asin",
    "phase": "forward",
    "cause": "inverse-function-domain",
    "symptom": "loss-nan",
    "first_bad_step": 3,
    "n_steps": 6,
    "fix": "normalise, and clamp the sine inside (-1, 1)",
}


class Attitude(nn.Module):
    def __init__(self, safe):
        super().__init__()
        self.safe = safe
        self.body = nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 16), nn.Tanh(), nn.Linear(16, 4))

    def forward(self, gyro, q):
        q = q + 0.01 * self.body(gyro)
        w, x, y, z = q.unbind(-1)
        sine = 2 * (w * y - x * z)
        if self.safe:
            sine = sine.clamp(-0.999, 0.999)
        return torch.asin(sine)  # ORIGIN


def build(fixed: bool = False):
    torch.manual_seed(22)
    net = Attitude(fixed)
    opt = torch.optim.Adam(net.parameters(), lr=1e-3)
    gen = torch.Generator().manual_seed(122)

    def step(i):
        gyro = torch.randn(12, 6, generator=gen)
        pitch = 1.2 * (torch.rand(12, generator=gen) - 0.5)
        length = torch.ones(12)
        if i == 3:
            pitch[5], length[5] = 1.5, 1.05  # nose up, in a frame that was extrapolated
        zero = torch.zeros(12)
        q = torch.stack([torch.cos(pitch / 2), zero, torch.sin(pitch / 2), zero], -1) * length.unsqueeze(1)
        opt.zero_grad()
        loss = nn.functional.mse_loss(net(gyro, q), pitch)
        loss.backward()
        opt.step()
        return loss

    return net, step
