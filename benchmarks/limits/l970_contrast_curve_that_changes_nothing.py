"""Sigmoidal contrast (s(a (x - m)) - s(-a m)) / (s(a (1 - m)) - s(-a m)), m = 1/2, with a strength that starts at 0: x itself."""
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
    "loss_truth": 0.005833374519,
    "fix": "the quotient of tanh(y) / y, with its series",
}


class Retouch(nn.Module):
    MIDPOINT = 0.5

    def __init__(self):
        super().__init__()
        self.contrast = nn.Parameter(torch.tensor([0.0, 3.0, 5.0]).view(3, 1, 1))
        self.gain = nn.Parameter(torch.ones(3, 1, 1))
        self.register_buffer("image", torch.tensor([[[0.1, 0.7], [0.4, 0.9]], [[0.2, 0.3], [0.8, 0.6]], [[0.5, 0.05], [0.35, 0.95]]]))
        self.register_buffer("graded", torch.tensor([[[0.0, 0.8], [0.3, 1.0]], [[0.1, 0.2], [0.9, 0.7]], [[0.5, 0.0], [0.2, 1.0]]]))

    def curve(self, x, fixed):
        a, m = self.contrast, self.MIDPOINT
        if fixed:
            def flat(y):
                near = y.abs() < 1e-2
                safe = torch.where(near, torch.ones_like(y), y)
                return torch.where(near, 1 - y**2 / 3, torch.tanh(safe) / safe)

            return m + (x - m) * flat(a * (x - m) / 2) / flat(a / 4)
        low, high = torch.sigmoid(-a * m), torch.sigmoid(a * (1 - m))
        lifted = torch.sigmoid(a * (x - m)) - low
        return lifted / (high - low)  # ORIGIN

    def forward(self, fixed):
        out = self.gain * self.curve(self.image, fixed)
        return (out - self.graded).square().mean()


def build(fixed: bool = False):
    net = Retouch()
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


def exact(contrast, gain, image, graded):
    flat = lambda y: integral(lambda t: 1 / torch.cosh(y * t) ** 2)  # tanh(y) / y
    out = gain * (0.5 + (image - 0.5) * flat(contrast * (image - 0.5) / 2) / flat(contrast / 4))
    return ((out - graded) ** 2).mean()


def truth():
    net = Retouch().double()
    p = {n: v.detach().requires_grad_() for n, v in net.named_parameters()}
    every = {n.replace(".", "_"): v for n, v in (*p.items(), *net.named_buffers())}
    grads = dict(zip(p, torch.autograd.grad(exact(**every), list(p.values()))))
    return grads
