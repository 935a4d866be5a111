"""Distillation by KL(p | (1 - a) p + a q) / a^2 with a skew that starts at 0 in one head: half of the chi-square divergence, sum (q - p)^2 / (2 p)."""
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
    "loss_truth": 0.1425111446,
    "fix": "half of the chi-square divergence, with the series of (y - log(1 + y)) / y^2",
}


class SkewedDistillation(nn.Module):
    def __init__(self):
        super().__init__()
        self.skew = nn.Parameter(torch.tensor([0.0, 0.5]))
        self.student = nn.Parameter(torch.tensor([[[0.3, -0.5, 0.9], [1.0, 0.2, -0.4]], [[0.1, 0.8, -0.6], [-0.2, 0.5, 0.7]]]))
        self.register_buffer("teacher", torch.tensor([[[0.5, 0.1, 0.2], [0.7, -0.3, 0.4]], [[-0.5, 0.9, 0.3], [0.6, 0.0, -0.1]]]))

    def divergence(self, p, q, fixed):
        a = self.skew.view(-1, 1, 1)
        if fixed:
            relative = (q - p) / p
            y = a * relative
            near = y.abs() < 2e-2
            safe = torch.where(near, torch.ones_like(y), y)
            shape = torch.where(near, 1 / 2 - y / 3 + y**2 / 4 - y**3 / 5, (safe - torch.log1p(safe)) / safe**2)
            return (p * relative**2 * shape).sum(-1)
        mixture = torch.lerp(p, q, a.expand_as(p))
        kl = torch.sum(p * (p / mixture).log(), dim=-1)
        return kl / self.skew.unsqueeze(-1) ** 2  # ORIGIN

    def forward(self, fixed):
        p, q = self.teacher.softmax(-1), self.student.softmax(-1)
        return self.divergence(p, q, fixed).mean()


def build(fixed: bool = False):
    net = SkewedDistillation()
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


def exact(skew, student, teacher):
    p, q = torch.softmax(teacher, -1), torch.softmax(student, -1)
    d = (q - p) / p
    shape = integral(lambda s: s / (1 + skew[:, None, None] * d * s))  # (y - log(1 + y)) / y^2, and sum p d = 0
    return (p * d**2 * shape).sum(-1).mean()


def truth():
    net = SkewedDistillation().double()
    p = {n: v.detach().requires_grad_() for n, v in net.named_parameters()}
    every = {n.replace(".", "_"): v for n, v in (*p.items(), *net.named_buffers())}
    grads = dict(zip(p, torch.autograd.grad(exact(**every), list(p.values()))))
    return grads
