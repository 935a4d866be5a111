"""Inverse of a piecewise quadratic flow, (-b + sqrt(b^2 - 4 a c)) / (2 a), in a bin whose two heights are equal: -c / b."""
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
    "loss_truth": 0.3622375884,
    "fix": "2 c / (-b - sqrt(b^2 - 4 a c))",
}


class QuadraticSpline(nn.Module):
    WIDTH = 0.5

    def __init__(self):
        super().__init__()
        self.heights = nn.Parameter(torch.tensor([1.0, 1.0, 0.4, 1.6]))
        self.register_buffer("bin", torch.tensor([0, 0, 1, 2, 2]))
        self.register_buffer("inside", torch.tensor([0.1, 0.35, 0.2, 0.15, 0.3]))

    def solve(self, a, b, c, fixed):
        disc = torch.sqrt(b * b - 4 * a * c)
        if fixed:
            return 2 * c / (-b - disc)
        return (disc - b) / (2 * a)  # ORIGIN

    def inverse(self, fixed):
        left, right = self.heights[self.bin], self.heights[self.bin + 1]
        alpha = self.solve(0.5 * (right - left) * self.WIDTH, left * self.WIDTH, -self.inside, fixed)
        density = torch.lerp(left, right, alpha)
        x = (self.bin + alpha) * self.WIDTH
        return x, -torch.log(density)

    def forward(self, fixed):
        x, log_det = self.inverse(fixed)
        log_prob = -0.5 * (x - 0.75) ** 2 / 0.3 + log_det
        return -log_prob.mean()


def build(fixed: bool = False):
    net = QuadraticSpline()
    opt = torch.optim.SGD(net.parameters(), lr=1e-3)

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


def exact(heights, bin, inside):
    left, right = heights[bin], heights[bin + 1]
    a, b = (right - left) / 4, left / 2
    # the root of a t^2 + b t = y is y int_0^1 (b^2 + 4 a y s)^(-1/2) ds
    alpha = inside * integral(lambda s: (b**2 + 4 * a * inside * s) ** -0.5)
    x = (bin + alpha) / 2
    return ((x - 0.75) ** 2 / 0.6 + torch.log(left + alpha * (right - left))).mean()


def truth():
    net = QuadraticSpline().double()
    p = {n: v.detach().requires_grad_() for n, v in net.named_parameters()}
    every = {n.replace(".", "_"): v for n, v in (*p.items(), *net.named_buffers())}
    grads = dict(zip(p, torch.autograd.grad(exact(**every), list(p.values()))))
    return grads
