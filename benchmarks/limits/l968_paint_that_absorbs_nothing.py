"""Kubelka and Munk's reflectance 1 / (a + b coth(b S X)), b = sqrt(a^2 - 1), of a pigment without absorption: S X / (1 + S X)."""
import math

import torch
from torch import nn

META = {
    "origin_op": "div",
    "phase": "forward",
    "cause": "div-by-zero",
    "symptom": "loss-nan",
    "first_bad_step": 0,
    "n_steps": 2,
    "kind": "removable",
    "loss_truth": 0.0407128199,
    "fix": "b coth(b s) by its power series in b^2",
}


class Pigments(nn.Module):
    """three pigments, two wavelength bands, mixed by concentration"""

    def __init__(self):
        super().__init__()
        self.absorb = nn.Parameter(torch.tensor([[0.0, 0.0], [0.8, 0.1], [0.2, 1.4]]))
        self.scatter = nn.Parameter(torch.tensor([[1.6, 1.4], [0.5, 0.6], [0.7, 0.4]]))
        self.register_buffer("recipes", torch.tensor([[1.0, 0.0, 0.0], [0.5, 0.5, 0.0], [0.2, 0.3, 0.5]]))
        self.register_buffer("swatches", torch.tensor([[0.7, 0.6], [0.4, 0.5], [0.3, 0.2]]))

    def reflectance(self, k, s, thickness, fixed):
        a = 1 + k / s
        b2 = a.square() - 1
        if fixed:
            near = b2 < 1e-3
            b = torch.where(near, torch.ones_like(b2), b2).sqrt()
            series = (1 + b2 * (s * thickness) ** 2 / 3) / (s * thickness)
            return 1 / (a + torch.where(near, series, b / torch.tanh(b * s * thickness)))
        b = b2.sqrt()
        coth = torch.cosh(b * s * thickness) / torch.sinh(b * s * thickness)  # ORIGIN
        return 1 / (a + b * coth)

    def forward(self, fixed):
        k, s = self.recipes @ self.absorb, self.recipes @ self.scatter
        return (self.reflectance(k, s, 1.2, fixed) - self.swatches).abs().pow(1.5).sum()


def build(fixed: bool = False):
    net = Pigments()
    opt = torch.optim.SGD(net.parameters(), lr=1e-4)

    def step(i):
        opt.zero_grad()
        loss = net(fixed)
        loss.backward()
        opt.step()
        return loss

    return net, step


def exact(absorb, scatter, recipes, swatches):
    k, s = recipes @ absorb, recipes @ scatter
    a = 1 + k / s
    y = (a**2 - 1) * (1.2 * s) ** 2
    cosh = sum(y**j / math.gamma(1 + 2 * j) for j in range(25))
    sinhc = sum(y**j / math.gamma(1 + 2 * j + 1) for j in range(25))
    return ((1 / (a + cosh / sinhc / (1.2 * s)) - swatches).abs() ** 1.5).sum()


def truth():
    net = Pigments().double()
    p = {n: v.detach().requires_grad_() for n, v in net.named_parameters()}
    every = {n.replace(".", "_"): v for n, v in (*p.items(), *net.named_buffers())}
    grads = dict(zip(p, torch.autograd.grad(exact(**every), list(p.values()))))
    return grads
