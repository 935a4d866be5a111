"""Volume of geodesic balls in constant curvature, 2 pi / K (r - sin(2 r sqrt K) / (2 sqrt K)), with a curvature that starts at 0: 4/3 pi r^3."""
import math

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

META = {
    "origin_op": "div",
    "phase": "forward",
    "cause": "div-by-zero",
    "symptom": "loss-nan",
    "first_bad_step": 0,
    "n_steps": 2,
    "kind": "removable",
    "loss_truth": -34.10143862,
    "fix": "the power series in K of the volume",
}


def ball_volume(radius, curvature, fixed):
    if fixed:
        terms = [(-1) ** (k + 1) * (2 * radius) ** (2 * k + 1) * curvature ** (k - 1) / math.gamma(1 + 2 * k + 1) for k in range(1, 12)]
        return math.pi * sum(terms)
    root = torch.sqrt(curvature)
    chord = torch.sin(2 * root * radius) / (2 * root)  # ORIGIN
    return 2 * math.pi / curvature * (radius - chord)


class CurvatureFit(nn.Module):
    """curvature of data manifolds from the growth of their neighbourhoods"""

    def __init__(self):
        super().__init__()
        self.curvature = nn.Parameter(torch.tensor([0.0, 0.6]))
        self.log_density = nn.Parameter(torch.tensor([1.5, 1.2]))
        self.register_buffer("radius", torch.tensor([0.5, 0.8, 1.1, 1.4]))
        self.register_buffer("counts", torch.tensor([[3.0, 9.0, 21.0, 45.0], [2.0, 7.0, 15.0, 27.0]]))

    def forward(self, fixed):
        volume = ball_volume(self.radius[None, :], self.curvature[:, None], fixed)
        rate = self.log_density[:, None].exp() * volume
        return F.poisson_nll_loss(rate, self.counts, log_input=False, eps=0.0)


def build(fixed: bool = False):
    net = CurvatureFit()
    opt = torch.optim.SGD(net.parameters(), lr=1e-4)

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


def exact(curvature, log_density, radius, counts):
    k = curvature[:, None]
    # r - sin(2 s r) / (2 s) = int_0^r 2 sin^2(s x) dx, and sin^2(s x) / s^2 = x^2 (sum_j (-K x^2)^j / (2 j + 1)!)^2
    sinc = lambda y: sum((-y) ** j / math.gamma(1 + 2 * j + 1) for j in range(15))
    volume = 4 * math.pi * radius**3 * integral(lambda t: t**2 * sinc(k * (radius * t) ** 2) ** 2)
    rate = log_density[:, None].exp() * volume
    return (rate - counts * rate.log()).mean()


def truth():
    net = CurvatureFit().double()
    p = {n: v.detach().requires_grad_() for n, v in net.named_parameters()}
    every = {n.replace(".", "_"): v for n, v in (*p.items(), *net.named_buffers())}
    grads = dict(zip(p, torch.autograd.grad(exact(**every), list(p.values()))))
    return grads
