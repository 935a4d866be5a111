"""Slope of the entropic transport map between Gaussians, (sqrt(4 a b + e^2) - e) / (2 a), from a source of variance 0: b / e."""
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
    "loss_truth": 0.321479374,
    "fix": "2 b / (sqrt(4 a b + e^2) + e)",
}


class EntropicMap(nn.Module):
    EPSILON = 0.5

    def __init__(self):
        super().__init__()
        self.source_var = nn.Parameter(torch.tensor([0.0, 1.2, 0.4]))
        self.target_var = nn.Parameter(torch.tensor([0.9, 0.7, 1.5]))
        self.mean = nn.Parameter(torch.tensor([0.1, -0.2, 0.3]))
        self.register_buffer("x", torch.tensor([[0.5, -1.0, 0.2], [1.5, 0.4, -0.6]]))
        self.register_buffer("y", torch.tensor([[0.9, -0.8, 0.5], [2.2, 0.1, -0.4]]))

    def slope(self, fixed):
        a, b, eps = self.source_var, self.target_var, self.EPSILON
        root = (4 * a * b + eps**2).sqrt()
        if fixed:
            return 2 * b / (root + eps)
        coupling = (root - eps) / 2
        return coupling / a  # ORIGIN

    def forward(self, fixed):
        mapped = self.mean + self.slope(fixed) * (self.x - self.mean)
        return (mapped - self.y).square().mean(0).sum()


def build(fixed: bool = False):
    net = EntropicMap()
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


def exact(source_var, target_var, mean, x, y):
    # (sqrt(e^2 + 4 a b) - e) / (2 a) = b int_0^1 (e^2 + 4 a b t)^(-1/2) dt
    slope = target_var * integral(lambda t: (0.25 + 4 * source_var * target_var * t) ** -0.5)
    return ((mean + slope * (x - mean) - y) ** 2).mean(0).sum()


def truth():
    net = EntropicMap().double()
    p = {n: v.detach().requires_grad_() for n, v in net.named_parameters()}
    every = {n.replace(".", "_"): v for n, v in (*p.items(), *net.named_buffers())}
    grads = dict(zip(p, torch.autograd.grad(exact(**every), list(p.values()))))
    return grads
