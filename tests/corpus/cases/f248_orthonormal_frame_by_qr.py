"""Frames are orthonormalised by torch.linalg.qr; two equal columns make R singular and its backward divide by zero."""

import torch
from torch import nn

META = {
    "origin_op": "linalg_qr",
    "also_ops": ("linalg_solve_triangular", "linalg_solve_triangular_ex"),
    "phase": "backward",
    "cause": "degenerate-matrix",
    "symptom": "grad-nan",
    "first_bad_step": 2,
    "n_steps": 4,
    "fix": "add a jitter, or Gram-Schmidt with an epsilon",
}


class Frames(nn.Module):
    def __init__(self, jitter):
        super().__init__()
        self.lin = nn.Linear(5, 6, bias=False)
        self.jitter = jitter

    def forward(self, x):
        m = self.lin(x).view(-1, 3, 2)
        m = m + self.jitter * torch.tensor([[1.0, 0.0], [0.0, 1.0], [0.5, -0.5]])
        return torch.linalg.qr(m).Q  # ORIGIN


def build(fixed: bool = False):
    torch.manual_seed(1307)
    net = Frames(1e-1 if fixed else 0.0)
    opt = torch.optim.Adam(net.parameters(), lr=1e-3)
    gen = torch.Generator().manual_seed(1312)

    def step(i):
        opt.zero_grad()
        x = torch.randn(6, 5, generator=gen)
        if i == 2:
            x[3] = 0
        loss = (net(x)[..., 0] - 0.3).square().mean() + net(x)[:, 0, 1].mean()
        loss.backward()
        opt.step()
        return loss

    return net, step
