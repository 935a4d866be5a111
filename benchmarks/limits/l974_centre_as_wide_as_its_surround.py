"""Receptive field as a scale-normalised difference of Gaussians, (G(s) - G(c)) / (s^2 - c^2), with equal widths: half the Laplacian of G."""
import math

import numpy as np
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
    "loss_truth": 0.1459122783,
    "fix": "the divided difference as an integral of the derivative in the variance",
}


def gaussian(r2, var):
    return torch.exp(-r2 / (2 * var)) / (2 * math.pi * var)


class ReceptiveField(nn.Module):
    def __init__(self):
        super().__init__()
        self.centre = nn.Parameter(torch.tensor([1.0, 0.6]))
        self.surround = nn.Parameter(torch.tensor([1.0, 1.4]))
        self.gain = nn.Parameter(torch.tensor([-2.0, -1.5]))
        axis = torch.linspace(-1.5, 1.5, 4)
        self.register_buffer("r2", axis[:, None] ** 2 + axis[None, :] ** 2)
        self.register_buffer("response", torch.tensor([[0.4, 0.1], [0.7, -0.2]]))
        self.register_buffer("stimuli", torch.stack([torch.exp(-self.r2), torch.cos(2 * self.r2)]))

    def kernel(self, fixed):
        v_c, v_s = self.centre.square()[:, None, None], self.surround.square()[:, None, None]
        if fixed:
            middle, gap = (v_c + v_s) / 2, v_s - v_c
            near = gap.abs() < 1e-3
            slope = gaussian(self.r2, middle) * (self.r2 / (2 * middle**2) - 1 / middle)
            safe = torch.where(near, torch.ones_like(gap), gap)
            return torch.where(near, slope, (gaussian(self.r2, v_s) - gaussian(self.r2, v_c)) / safe)
        difference = gaussian(self.r2, v_s) - gaussian(self.r2, v_c)
        return difference / (v_s - v_c)  # ORIGIN

    def forward(self, fixed):
        rate = torch.einsum("uij,sij,u->us", self.kernel(fixed), self.stimuli, self.gain)
        return (rate - self.response).square().mean()


def build(fixed: bool = False):
    net = ReceptiveField()
    opt = torch.optim.Adam(net.parameters(), lr=1e-4)

    def step(i):
        opt.zero_grad()
        loss = net(fixed)
        loss.backward()
        opt.step()
        return loss

    return net, step


def integral(f):
    """over [0, 1], 60 nodes of Gauss and Legendre"""
    nodes, weights = np.polynomial.legendre.leggauss(60)
    return sum(w / 2 * f((1 + x) / 2) for x, w in zip(nodes.tolist(), weights.tolist()))


def exact(centre, surround, gain, r2, response, stimuli):
    def slope(v):  # of the Gaussian in its variance
        return torch.exp(-r2 / (2 * v)) / (2 * math.pi * v) * (r2 / (2 * v * v) - 1 / v)

    c, s = centre[:, None, None] ** 2, surround[:, None, None] ** 2
    kernel = integral(lambda t: slope(c + (s - c) * t))
    rate = gain[:, None] * (kernel[:, None] * stimuli).sum((-1, -2))
    return ((rate - response) ** 2).mean()


def truth():
    net = ReceptiveField().double()
    p = {n: v.detach().requires_grad_() for n, v in net.named_parameters()}
    every = {n.replace(".", "_"): v for n, v in (*p.items(), *net.named_buffers())}
    grads = dict(zip(p, torch.autograd.grad(exact(**every), list(p.values()))))
    return grads
