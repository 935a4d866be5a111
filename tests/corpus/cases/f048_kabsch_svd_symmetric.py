"""Kabsch alignment inside the loss: a cross-covariance with equal singular values has no derivative of its singular vectors."""

import torch
from torch import nn

META = {
    "origin_op": "linalg_svd",
    "phase": "backward",
    "cause": "degenerate-matrix",
    "symptom": "grad-nan",
    "first_bad_step": 3,
    "n_steps": 4,
    "fix": "detach the rotation; the aligned error does not need its gradient",
}


class Conformer(nn.Module):
    def __init__(self):
        super().__init__()
        self.atom = nn.Sequential(nn.Linear(3, 24), nn.SiLU(), nn.Linear(24, 24), nn.SiLU())
        self.shift = nn.Linear(24, 3)
        nn.init.zeros_(self.shift.weight)
        nn.init.zeros_(self.shift.bias)

    def forward(self, xyz, free):
        return xyz + free * self.shift(self.atom(xyz))


def aligned_error(pred, true, detach):
    cov = pred.transpose(1, 2) @ true
    u, _, vh = torch.linalg.svd(cov.detach() if detach else cov)  # ORIGIN
    return (pred @ (u @ vh) - true).square().mean()


def build(fixed: bool = False):
    torch.manual_seed(48)
    net = Conformer()
    opt = torch.optim.Adam(net.parameters(), lr=1e-3)
    gen = torch.Generator().manual_seed(148)
    octahedron = torch.cat([torch.eye(3), -torch.eye(3)])

    def step(i):
        true = torch.randn(2, 6, 3, generator=gen)
        free = torch.ones(2, 1, 1)
        start = true + 0.3 * torch.randn(2, 6, 3, generator=gen)
        if i == 3:
            true[1], start[1], free[1] = octahedron, octahedron, 0.0  # a rigid, perfectly symmetric complex
        opt.zero_grad()
        loss = aligned_error(net(start, free), true, fixed)
        loss.backward()
        opt.step()
        return loss

    return net, step
