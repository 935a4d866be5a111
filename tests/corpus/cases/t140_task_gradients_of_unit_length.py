"""Task gradients are brought to unit length before they are added; one task has no gradient once its margin is kept by all samples."""

import torch
from torch import nn

META = {
    "origin_op": "div",
    "phase": "optimizer",
    "also_phase": "forward",
    "cause": "div-by-zero",
    "also_causes": ("norm-at-zero",),
    "symptom": "grad-nan",
    "first_bad_step": 4,
    "n_steps": 6,
    "fix": "clamp the length",
}


def unit(grads, least):
    length = torch.sqrt(sum(g.square().sum() for g in grads))
    return [g / length.clamp(min=least) for g in grads]  # ORIGIN


def build(fixed: bool = False):
    torch.manual_seed(640)
    net = nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 2))
    params = list(net.parameters())
    opt = torch.optim.Adam(params, lr=1e-2)
    gen = torch.Generator().manual_seed(740)
    least = 1e-8 if fixed else 0.0

    def step(i):
        x = torch.randn(16, 6, generator=gen)
        value, score = net(x).unbind(1)
        margin = 1.0 if i != 4 else -50.0
        losses = [(value - x[:, 0]).square().mean(), torch.relu(margin - score * x[:, 1].sign()).mean()]
        parts = [unit(torch.autograd.grad(loss, params, retain_graph=True), least) for loss in losses]
        opt.zero_grad()
        for p, *gs in zip(params, *parts, strict=True):
            p.grad = torch.stack(gs).sum(0)
        opt.step()
        return sum(losses)

    return net, step
