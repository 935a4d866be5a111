"""A camera-pose learner builds look-at matrices; one camera looks straight up, its view axis is parallel to the up vector."""

import torch
from torch import nn
from torch.nn import functional as F

META = {
    "origin_op": "div",
    "phase": "forward",
    "cause": "norm-at-zero",
    "also_causes": ("div-by-zero",),
    "symptom": "loss-nan",
    "first_bad_step": 2,
    "n_steps": 5,
    "fix": "choose another up vector when the view axis is vertical",
}


def unit(v):
    return v / v.norm(dim=-1, keepdim=True)  # ORIGIN


class LookAt(nn.Module):
    def __init__(self, tilt):
        super().__init__()
        self.register_buffer("up", torch.tensor([tilt, 1.0, 0.0]))
        self.gain = nn.Parameter(torch.ones(()))

    def forward(self, eye, target):
        view = unit((target - eye) * self.gain)
        right = unit(torch.cross(view, self.up.expand_as(view), dim=-1))
        above = torch.cross(right, view, dim=-1)
        return torch.stack([right, above, -view], -2)


class PoseCritic(nn.Module):
    def __init__(self, tilt):
        super().__init__()
        self.cam = LookAt(tilt)
        self.score = nn.Sequential(nn.Linear(9, 16), nn.ReLU(), nn.Linear(16, 1))

    def forward(self, eye, target):
        return self.score(self.cam(eye, target).flatten(1))


def build(fixed: bool = False):
    torch.manual_seed(206)
    net = PoseCritic(0.05 if fixed else 0.0)
    opt = torch.optim.Adam(net.parameters(), lr=1e-3)
    gen = torch.Generator().manual_seed(706)

    def step(i):
        opt.zero_grad()
        eye = torch.randn(8, 3, generator=gen)
        target = torch.randn(8, 3, generator=gen)
        if i == 2:
            target[5] = eye[5] + torch.tensor([0.0, 2.0, 0.0])
        loss = F.binary_cross_entropy_with_logits(net(eye, target).squeeze(-1), (eye[:, 0] > 0).float())
        loss.backward()
        opt.step()
        return loss

    return net, step
