"""Sharpness-aware minimisation: the ascent step divides by the gradient's norm, which is exactly zero once the margin is kept."""

import torch
from torch import nn

META = {
    "origin_op": "div",
    "also_ops": ("reciprocal", "mul"),
    "phase": "optimizer",
    "also_phase": "forward",
    "cause": "div-by-zero",
    "also_causes": ("norm-at-zero", "optimizer-arithmetic", "zero-times-inf"),
    "symptom": "loss-nan",
    "first_bad_step": 3,
    "n_steps": 6,
    "fix": "add 1e-12 to the norm",
}
RHO = 0.05


@torch.no_grad()
def ascend(params, eps):
    norm = torch.stack([p.grad.norm() for p in params]).norm()
    scale = RHO / (norm + eps)  # ORIGIN
    moved = [p.grad * scale for p in params]
    for p, shift in zip(params, moved, strict=True):
        p.add_(shift)
    return moved


@torch.no_grad()
def descend(params, moved):
    for p, shift in zip(params, moved, strict=True):
        p.sub_(shift)


def build(fixed: bool = False):
    torch.manual_seed(465)
    net = nn.Linear(4, 1)
    params = list(net.parameters())
    opt = torch.optim.SGD(params, lr=0.5)
    gen = torch.Generator().manual_seed(565)

    def step(i):
        x = torch.randn(24, 4, generator=gen)
        easy = 40.0 if i >= 6 else 1.0
        y = torch.sign(x[:, :1])
        x = torch.cat([y * easy, 0.1 * x[:, 1:]], 1)

        def hinge():
            return torch.relu(1.0 - y * net(x)).mean()

        opt.zero_grad()
        hinge().backward()
        moved = ascend(params, 1e-12 if fixed else 0.0)
        opt.zero_grad()
        loss = hinge() + 1e-3 * net.weight.square().sum()
        loss.backward()
        descend(params, moved)
        opt.step()
        return loss

    return net, step
