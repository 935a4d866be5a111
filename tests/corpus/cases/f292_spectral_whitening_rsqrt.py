"""ZCA whitening by eigh and rsqrt of the eigenvalues; a feature that is constant gives an eigenvalue of zero."""

import torch
from torch import nn
from torch.nn import functional as F

META = {
    "origin_op": "rsqrt",
    "also_ops": ("mul",),
    "phase": "forward",
    "cause": "div-by-zero",
    "also_causes": ("sqrt-at-zero", "degenerate-matrix", "sqrt-of-negative"),
    "symptom": "loss-nan",
    "first_bad_step": 2,
    "n_steps": 4,
    "fix": "a jitter on the eigenvalues",
}


class Whiten(nn.Module):
    def __init__(self, jitter):
        super().__init__()
        self.jitter = jitter

    def forward(self, x):
        x = x - x.mean(0)
        values, vectors = torch.linalg.eigh(x.T @ x / len(x))
        return x @ (vectors * torch.rsqrt(values + self.jitter)) @ vectors.T  # ORIGIN


def build(fixed: bool = False):
    torch.manual_seed(2677)
    net = nn.Linear(4, 1)
    opt = torch.optim.Adam(net.parameters(), lr=1e-3)
    gen = torch.Generator().manual_seed(2682)
    white = Whiten(1e-4 if fixed else 0.0)

    def step(i):
        opt.zero_grad()
        x = torch.randn(16, 4, generator=gen)
        if i == 2:
            x[:, 2] = 1.0
        loss = F.mse_loss(net(white(x)), x[:, :1])
        loss.backward()
        opt.step()
        return loss

    return net, step
