"""A signed-distance net with an eikonal penalty: at the exact origin no ReLU is open, the gradient is zero, and so is the radicand."""

import torch
from torch import nn

META = {
    "origin_op": "sqrt",
    "phase": "backward",
    "cause": "sqrt-at-zero",
    "also_causes": ("norm-at-zero",),
    "symptom": "grad-nan",
    "first_bad_step": 4,
    "n_steps": 7,
    "fix": "an epsilon under the root",
}


class Sdf(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(
            nn.Linear(2, 32, bias=False), nn.ReLU(), nn.Linear(32, 32, bias=False), nn.ReLU(), nn.Linear(32, 1)
        )

    def forward(self, points):
        return self.net(points).squeeze(-1)


def eikonal(net, points, eps):
    points = points.requires_grad_()
    (slope,) = torch.autograd.grad(net(points).sum(), points, create_graph=True)
    length = torch.sqrt(slope.square().sum(-1) + eps)  # ORIGIN
    return (length - 1).square().mean()


def build(fixed: bool = False):
    torch.manual_seed(454)
    net = Sdf()
    opt = torch.optim.Adam(net.parameters(), lr=1e-3)
    gen = torch.Generator().manual_seed(554)
    eps = 1e-9 if fixed else 0.0

    def step(i):
        points = 2 * torch.rand(24, 2, generator=gen) - 1
        distance = points.norm(dim=1) - 0.5
        probes = torch.rand(16, 2, generator=gen)
        if i == 4:
            probes[9] = 0.0  # the centre of the grid
        opt.zero_grad()
        loss = nn.functional.l1_loss(net(points), distance) + 0.1 * eikonal(net, probes, eps)
        loss.backward()
        opt.step()
        return loss

    return net, step
