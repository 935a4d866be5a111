"""Planar flow: log(1 + u^T psi) forgets the absolute value, and the determinant changes sign as u grows."""

import torch
from torch import nn

META = {
    "origin_op": "log",
    "phase": "forward",
    "cause": "log-of-negative",
    "symptom": "loss-nan",
    "first_bad_step": 6,
    "n_steps": 9,
    "fix": "constrain u so that the determinant stays positive",
}


class Planar(nn.Module):
    def __init__(self, dim, constrain):
        super().__init__()
        self.constrain = constrain
        self.u, self.w = nn.Parameter(0.3 * torch.randn(dim)), nn.Parameter(torch.randn(dim))
        self.b = nn.Parameter(torch.zeros(()))

    def forward(self, z):
        u = self.u
        if self.constrain:
            inner = self.w @ u
            u = u + (nn.functional.softplus(inner) - 1 - inner) * self.w / self.w.square().sum()
        a = torch.tanh(z @ self.w + self.b)
        psi = (1 - a.square()).unsqueeze(-1) * self.w
        logdet = torch.log(1 + psi @ u)  # ORIGIN
        return z + a.unsqueeze(-1) * u, logdet


class Flow(nn.Module):
    def __init__(self, constrain, dim=2, depth=3):
        super().__init__()
        self.layers = nn.ModuleList([Planar(dim, constrain) for _ in range(depth)])

    def forward(self, z):
        total = 0.0
        for layer in self.layers:
            z, logdet = layer(z)
            total = total + logdet
        return z, total


def build(fixed: bool = False):
    torch.manual_seed(7)
    net = Flow(fixed)
    opt = torch.optim.SGD(net.parameters(), lr=0.8)
    gen = torch.Generator().manual_seed(107)

    def energy(z):
        return 0.5 * ((z.norm(dim=1) - 2.0) / 0.4).square()

    def step(i):
        z0 = torch.randn(32, 2, generator=gen)
        opt.zero_grad()
        z, logdet = net(z0)
        loss = (energy(z) - logdet).mean()
        loss.backward()
        nn.utils.clip_grad_norm_(net.parameters(), 5.0)
        opt.step()
        return loss

    return net, step
