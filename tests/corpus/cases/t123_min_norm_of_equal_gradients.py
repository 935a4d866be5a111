"""Two tasks combined by the minimum-norm point of their gradients; when both ask for the same thing the segment has length zero."""

import torch
from torch import nn

META = {
    "origin_op": "div",
    "phase": "optimizer",
    "also_phase": "forward",
    "cause": "div-by-zero",
    "symptom": "grad-nan",
    "first_bad_step": 3,
    "n_steps": 6,
    "fix": "clamp the squared length",
}


def flat_gradient(loss, params):
    return torch.cat([g.flatten() for g in torch.autograd.grad(loss, params, retain_graph=True)])


def min_norm(v1, v2, least):
    gap = (v1 - v2).square().sum().clamp(min=least)
    weight = (torch.dot(v2 - v1, v2) / gap).clamp(0, 1)  # ORIGIN
    return weight * v1 + (1 - weight) * v2


def build(fixed: bool = False):
    torch.manual_seed(623)
    net = nn.Sequential(nn.Linear(5, 10), nn.Tanh(), nn.Linear(10, 1))
    params = list(net.parameters())
    opt = torch.optim.SGD(params, lr=0.1)
    gen = torch.Generator().manual_seed(723)

    def step(i):
        x = torch.randn(16, 5, generator=gen)
        first = x[:, :1]
        second = x[:, :1] if i == 3 else x[:, :1] - x[:, 1:2]
        out = net(x)
        l1, l2 = nn.functional.mse_loss(out, first), nn.functional.mse_loss(out, second)
        shared = min_norm(flat_gradient(l1, params), flat_gradient(l2, params), 1e-12 if fixed else 0.0)
        for p, g in zip(params, shared.split([p.numel() for p in params]), strict=True):
            p.grad = g.view_as(p)
        opt.step()
        return l1 + l2

    return net, step
