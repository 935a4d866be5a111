"""Wave equation on a graph, sin(t sqrt(l)) / sqrt(l) on the eigenvalues of its Laplacian, of which the first is 0: t."""
import math

import torch
from torch import nn

META = {
    "origin_op": "div",
    "phase": "forward",
    "cause": "sqrt-at-zero",
    "symptom": "loss-nan",
    "first_bad_step": 0,
    "n_steps": 2,
    "kind": "removable",
    "loss_truth": 0.4795186901,
    "fix": "the series t - l t^3 / 6 near 0",
}


class GraphWave(nn.Module):
    def __init__(self):
        super().__init__()
        self.stiffness = nn.Parameter(torch.tensor([0.8, 1.5]))
        self.mixing = nn.Parameter(torch.tensor([[0.6, -0.4], [0.2, 0.9]]))
        self.register_buffer("eig", torch.tensor([0.0, 2 - math.sqrt(2), 2.0, 2 + math.sqrt(2)]))
        modes = [[math.cos(math.pi * k * (n + 0.5) / 4) for k in range(4)] for n in range(4)]
        self.register_buffer("basis", torch.tensor(modes))
        self.register_buffer("velocity", torch.tensor([[1.0, 0.2], [-0.3, 0.5], [0.4, -0.8], [0.1, 0.3]]))
        self.register_buffer("seen", torch.tensor([[0.9, 0.1], [0.4, -0.2], [-0.1, 0.8], [0.6, 0.3]]))

    def kernel(self, t, fixed):
        lam = self.stiffness[:, None] * self.eig
        if fixed:
            near = lam < 1e-3
            freq = torch.where(near, torch.ones_like(lam), lam).sqrt()
            return torch.where(near, t - lam * t**3 / 6, torch.sin(t * freq) / freq)
        omega = lam.sqrt()
        phase = torch.sin(t * omega)
        return phase / omega  # ORIGIN

    def forward(self, fixed):
        spectral = self.basis.T @ self.velocity
        moved = torch.einsum("hk,kf,hf->kf", self.kernel(1.3, fixed), spectral, self.mixing)
        return ((self.basis @ moved) - self.seen).square().mean()


def build(fixed: bool = False):
    net = GraphWave()
    opt = torch.optim.SGD(net.parameters(), lr=1e-3)

    def step(i):
        opt.zero_grad()
        loss = net(fixed)
        loss.backward()
        opt.step()
        return loss

    return net, step


def exact(stiffness, mixing, eig, basis, velocity, seen):
    lam, t = stiffness[:, None] * eig, 1.3
    kernel = sum((-lam) ** k * (t ** (2 * k + 1) / math.gamma(1 + 2 * k + 1)) for k in range(20))
    moved = basis.T @ velocity * (kernel.T @ mixing)
    return ((basis @ moved - seen) ** 2).mean()


def truth():
    net = GraphWave().double()
    p = {n: v.detach().requires_grad_() for n, v in net.named_parameters()}
    every = {n.replace(".", "_"): v for n, v in (*p.items(), *net.named_buffers())}
    grads = dict(zip(p, torch.autograd.grad(exact(**every), list(p.values()))))
    return grads
