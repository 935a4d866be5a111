"""L-moments of the generalised extreme value distribution, 2 (1 - 3^-k) / (1 - 2^-k) - 3, at shape k = 0: 2 log 3 / log 2 - 3."""
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
    "loss_truth": 0.02050789535,
    "fix": "-expm1(-k log 3) / k and -expm1(-k log 2) / k with their series",
}


class ExtremeFlood(nn.Module):
    EULER = 0.57721566

    def __init__(self):
        super().__init__()
        self.shape = nn.Parameter(torch.tensor([0.0, 0.2, -0.15]))
        self.log_scale = nn.Parameter(torch.tensor([0.3, 0.1, 0.5]))
        self.register_buffer("l2", torch.tensor([1.0, 0.6, 1.5]))
        self.register_buffer("t3", torch.tensor([0.2, 0.05, 0.3]))

    def l_moments(self, fixed):
        k = self.shape
        if fixed:
            def box(base):
                x = k * math.log(base)
                near = x.abs() < 1e-2
                safe = torch.where(near, torch.ones_like(x), x)
                return math.log(base) * torch.where(near, 1 - x / 2 + x**2 / 6 - x**3 / 24, -torch.expm1(-safe) / safe)

            two, three = box(2.0), box(3.0)
            skew = 2 * three / two - 3
        else:
            two = 1 - 2.0**-k
            three = 1 - 3.0**-k
            skew = 2 * three / two - 3  # ORIGIN
            two = two / k
        spread = self.log_scale.exp() * two * torch.exp(torch.lgamma(1 + k))
        return spread, skew

    def forward(self, fixed):
        spread, skew = self.l_moments(fixed)
        return ((spread / self.l2).log().square() + 20 * (skew - self.t3).square()).mean()


def build(fixed: bool = False):
    net = ExtremeFlood()
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


def exact(shape, log_scale, l2, t3):
    box = lambda base: math.log(base) * integral(lambda s: torch.exp(-shape * math.log(base) * s))  # (1 - base^-k) / k
    spread = log_scale.exp() * box(2) * torch.lgamma(1 + shape).exp()
    return ((spread / l2).log() ** 2 + 20 * (2 * box(3) / box(2) - 3 - t3) ** 2).mean()


def truth():
    net = ExtremeFlood().double()
    p = {n: v.detach().requires_grad_() for n, v in net.named_parameters()}
    every = {n.replace(".", "_"): v for n, v in (*p.items(), *net.named_buffers())}
    grads = dict(zip(p, torch.autograd.grad(exact(**every), list(p.values()))))
    return grads
