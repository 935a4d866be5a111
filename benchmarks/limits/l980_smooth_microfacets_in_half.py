"""Microfacet distribution a^2 / (pi ((n.h)^2 (a^2 - 1) + 1)^2) in half precision: a^2 - 1 of a polished surface rounds to -1."""
import math

import torch
from torch import nn

META = {
    "origin_op": "div",
    "phase": "forward",
    "cause": "div-by-zero",
    "symptom": "loss-inf",
    "first_bad_step": 0,
    "n_steps": 2,
    "kind": "overflow",
    "loss_truth": 1.226387257,
    "fix": "float32 and (1 - c^2) + a^2 c^2",
}


class Highlight(nn.Module):
    def __init__(self):
        super().__init__()
        self.roughness = nn.Parameter(torch.tensor([0.11, 0.7]))
        self.level = nn.Parameter(torch.tensor([0.2, 0.1]))
        self.register_buffer("n_dot_h", torch.tensor([[1.0, 0.8], [0.95, 0.5]]))
        self.register_buffer("log_seen", torch.tensor([[7.0, -6.0], [0.0, -1.0]]))

    def distribution(self, rough, cosine, fixed):
        alpha2 = rough.pow(4)
        if fixed:
            spread = (1 - cosine.square()) + alpha2 * cosine.square()
        else:
            alpha2, cosine = alpha2.half(), cosine.half()
            spread = cosine * cosine * (alpha2 - 1) + 1
        return alpha2 / (math.pi * spread * spread)  # ORIGIN

    def forward(self, fixed):
        d = self.distribution(self.roughness[:, None], self.n_dot_h, fixed)
        log_radiance = torch.log(d).float() + self.level[:, None]
        return (log_radiance - self.log_seen).square().mean()


def build(fixed: bool = False):
    net = Highlight()
    opt = torch.optim.SGD(net.parameters(), lr=1e-6)

    def step(i):
        opt.zero_grad()
        loss = net(fixed)
        loss.backward()
        opt.step()
        return loss

    return net, step


def exact(roughness, level, n_dot_h, log_seen):
    a2, c2 = roughness[:, None] ** 4, n_dot_h**2
    log_d = a2.log() - math.log(math.pi) - 2 * torch.log(1 - c2 + a2 * c2)
    return ((log_d + level[:, None] - log_seen) ** 2).mean()


def truth():
    net = Highlight().double()
    p = {n: v.detach().requires_grad_() for n, v in net.named_parameters()}
    every = {n.replace(".", "_"): v for n, v in (*p.items(), *net.named_buffers())}
    grads = dict(zip(p, torch.autograd.grad(exact(**every), list(p.values()))))
    return grads
