"""A pose head returns unit quaternions, vector by vector in a comprehension; without a bias a missing frame gives norm zero."""

import torch
from torch import nn

META = {
    "origin_op": "div",
    "phase": "forward",
    "cause": "norm-at-zero",
    "also_causes": ("div-by-zero",),
    "symptom": "loss-nan",
    "first_bad_step": 2,
    "n_steps": 5,
    "fix": "add the identity quaternion before normalising",
}

IDENTITY = torch.tensor([1.0, 0.0, 0.0, 0.0])


class PoseNet(nn.Module):
    def __init__(self, safe):
        super().__init__()
        self.safe = safe
        self.body = nn.Sequential(
            nn.Linear(9, 24, bias=False),
            nn.Tanh(),
            nn.Linear(24, 24, bias=False),
            nn.Tanh(),
            nn.Linear(24, 8, bias=False),
        )

    def forward(self, imu):
        raw = self.body(imu).view(-1, 2, 4)
        if self.safe:
            raw = raw + IDENTITY
        return torch.stack([q / torch.linalg.vector_norm(q, dim=-1, keepdim=True) for q in raw.unbind(1)], 1)  # ORIGIN


def chordal(a, b):
    return (1 - (a * b).sum(-1).square()).mean()


def build(fixed: bool = False):
    torch.manual_seed(13)
    net = PoseNet(fixed)
    opt = torch.optim.Adam(net.parameters(), lr=2e-3)
    gen = torch.Generator().manual_seed(113)

    def step(i):
        imu = torch.randn(10, 9, generator=gen)
        target = nn.functional.normalize(torch.randn(10, 2, 4, generator=gen), dim=-1)
        if i == 2:
            imu[6] = 0.0  # the frame was lost
        opt.zero_grad()
        loss = chordal(net(imu), target)
        loss.backward()
        opt.step()
        return loss

    return net, step
