"""Alignment and uniformity with log(mean(exp(-2 d^2))) on features that nobody normalised: every d^2 is above 52."""
import math

import torch
from torch import nn

META = {
    "origin_op": "log",
    "phase": "forward",
    "cause": "log-of-zero",
    "symptom": "loss-inf",
    "first_bad_step": 0,
    "n_steps": 2,
    "kind": "overflow",
    "loss_truth": -11.47493061,
    "fix": "logsumexp of -t d^2 minus the logarithm of the number of pairs",
}


class AlignUniform(nn.Module):
    T, ALPHA, WEIGHT = 2.0, 2, 0.05

    def __init__(self):
        super().__init__()
        self.encoder = nn.Linear(2, 2, bias=False)
        with torch.no_grad():
            self.encoder.weight.copy_(torch.tensor([[4.0, -1.0], [0.5, 3.0]]))
        self.register_buffer("view_a", torch.tensor([[2.0, 0.0], [-1.0, 2.0], [0.0, -3.0]]))
        self.register_buffer("view_b", torch.tensor([[1.9, 0.1], [-1.1, 2.1], [0.1, -2.8]]))

    def uniformity(self, z, fixed):
        energy = torch.pdist(z).pow(2).mul(-self.T)
        if fixed:
            return torch.logsumexp(energy, 0) - math.log(energy.numel())
        return energy.exp().mean().log()  # ORIGIN

    def forward(self, fixed):
        a, b = self.encoder(self.view_a), self.encoder(self.view_b)
        align = (a - b).norm(dim=1).pow(self.ALPHA).mean()
        return align + self.WEIGHT * (self.uniformity(a, fixed) + self.uniformity(b, fixed)) / 2


def build(fixed: bool = False):
    net = AlignUniform()
    opt = torch.optim.SGD(net.parameters(), lr=1e-4)

    def step(i):
        opt.zero_grad()
        loss = net(fixed)
        loss.backward()
        opt.step()
        return loss

    return net, step


def exact(encoder_weight, view_a, view_b):
    a, b = view_a @ encoder_weight.T, view_b @ encoder_weight.T
    loss = ((a - b) ** 2).sum(1).mean()
    for z in (a, b):
        d2 = torch.stack([((z[i] - z[j]) ** 2).sum() for i, j in ((0, 1), (0, 2), (1, 2))])
        low = d2.min().detach()
        loss = loss + 0.025 * (torch.exp(-2 * (d2 - low)).sum().log() - 2 * low - math.log(3))
    return loss


def truth():
    net = AlignUniform().double()
    p = {n: v.detach().requires_grad_() for n, v in net.named_parameters()}
    every = {n.replace(".", "_"): v for n, v in (*p.items(), *net.named_buffers())}
    grads = dict(zip(p, torch.autograd.grad(exact(**every), list(p.values()))))
    return grads
