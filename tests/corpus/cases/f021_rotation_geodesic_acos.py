"""Geodesic loss between rotations: the clamp keeps acos in its domain, and at its edge the slope is infinite."""

import torch
from torch import nn

META = {
    "origin_op": "acos",
    "phase": "backward",
    "cause": "inverse-function-at-edge",
    "symptom": "grad-nan",
    "first_bad_step": 4,
    "n_steps": 7,
    "fix": "clamp to 1 - 1e-6, or use atan2 of the skew part's norm",
}


class Orientation(nn.Module):
    """Predicts a 6D rotation (two columns, orthonormalised) on top of an initial guess."""

    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(12, 24), nn.ReLU(), nn.Linear(24, 24), nn.ReLU())
        self.head = nn.Linear(24, 6)

    def forward(self, x, guess):
        six = self.head(self.body(x)) * x.abs().amax(1, keepdim=True) + torch.cat([guess[..., 0], guess[..., 1]], -1)
        a = nn.functional.normalize(six[:, :3], dim=1)
        b = nn.functional.normalize(six[:, 3:] - (a * six[:, 3:]).sum(1, keepdim=True) * a, dim=1)
        return torch.stack([a, b, torch.linalg.cross(a, b)], -1)


def geodesic(r, target, edge):
    cosine = (torch.einsum("bij,bij->b", r, target) - 1) / 2
    return torch.acos(cosine.clamp(-edge, edge)).mean()  # ORIGIN


def build(fixed: bool = False):
    torch.manual_seed(21)
    net = Orientation()
    opt = torch.optim.Adam(net.parameters(), lr=1e-3)
    gen = torch.Generator().manual_seed(121)

    def step(i):
        x = torch.randn(8, 12, generator=gen)
        target = torch.linalg.qr(torch.randn(8, 3, 3, generator=gen))[0]
        target = target * torch.linalg.det(target).view(-1, 1, 1)
        guess = target + 0.2 * torch.randn(8, 3, 3, generator=gen)
        if i == 4:
            x[3], target[3], guess[3] = 0.0, torch.eye(3), torch.eye(3)  # an object at rest
        opt.zero_grad()
        loss = geodesic(net(x, guess), target, 1 - 1e-6 if fixed else 1.0)
        loss.backward()
        opt.step()
        return loss

    return net, step
