"""Euler angles from rotation matrices: asin of the middle entry is exactly one at gimbal lock, where its slope is infinite."""

import torch
from torch import nn

META = {
    "origin_op": "asin",
    "phase": "backward",
    "cause": "inverse-function-at-edge",
    "symptom": "grad-inf",
    "first_bad_step": 2,
    "n_steps": 5,
    "fix": "clamp to 1 - 1e-6",
}


class Head(nn.Module):
    def __init__(self, limit):
        super().__init__()
        self.limit = limit
        self.scale = nn.Parameter(torch.ones(3, 3))

    def forward(self, rot):
        r = rot * self.scale
        pitch = torch.asin(r[:, 0, 2].clamp(-self.limit, self.limit))  # ORIGIN
        roll = torch.atan2(-r[:, 1, 2], r[:, 2, 2] + 2.0)
        return torch.stack([pitch, roll], -1)


def build(fixed: bool = False):
    torch.manual_seed(419)
    net = Head(1 - 1e-6 if fixed else 1.0)
    opt = torch.optim.SGD(net.parameters(), lr=1e-7)
    gen = torch.Generator().manual_seed(919)

    def step(i):
        opt.zero_grad()
        q, _ = torch.linalg.qr(torch.randn(6, 3, 3, generator=gen))
        rot = 0.98 * q
        if i == 2:
            net.scale.data.fill_(1.0)
            rot[3] = torch.tensor([[0.0, 0, 1], [0, 1, 0], [-1, 0, 0]])
        loss = (net(rot) - 0.1).square().mean()
        loss.backward()
        opt.step()
        return loss

    return net, step
