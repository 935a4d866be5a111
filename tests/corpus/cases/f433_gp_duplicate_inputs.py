"""Gaussian process marginal likelihood without noise: two equal inputs make the kernel singular, and its logdet -inf."""

import torch
from torch import nn

META = {
    "origin_op": "logdet",
    "also_ops": ("log", "linalg_slogdet", "_linalg_slogdet", "abs"),
    "phase": "forward",
    "cause": "degenerate-matrix",
    "symptom": "loss-inf",
    "also_causes": ("log-of-zero",),
    "first_bad_step": 2,
    "n_steps": 4,
    "fix": "jitter on the diagonal",
}


class DeepKernel(nn.Module):
    def __init__(self):
        super().__init__()
        self.feat = nn.Sequential(nn.Linear(2, 8), nn.Tanh(), nn.Linear(8, 2))
        self.log_scale = nn.Parameter(torch.zeros(()))

    def forward(self, x):
        f = self.feat(x)
        d2 = (f[:, None] - f[None]).pow(2).sum(-1)
        return torch.exp(-d2 / (2 * self.log_scale.exp() ** 2))


def complexity(k, jitter):
    return torch.logdet(k + jitter * torch.eye(len(k), dtype=k.dtype))  # ORIGIN


def build(fixed: bool = False):
    torch.manual_seed(67)
    net = DeepKernel().double()
    opt = torch.optim.Adam(net.parameters(), lr=1e-3)
    gen = torch.Generator().manual_seed(68)

    def step(i):
        x = 4 * torch.randn(3, 2, generator=gen, dtype=torch.float64)
        if i == 2:
            x = x[:1].expand(3, 2)  # the same well was measured three times
        y = torch.sin(x.sum(1))
        k = net(x)
        jitter = 1e-4 if fixed else 0.0
        fit = y @ (k + 1e-3 * torch.eye(3, dtype=k.dtype)).inverse() @ y
        loss = 0.5 * fit + 0.5 * complexity(k, jitter)
        opt.zero_grad()
        loss.backward()
        opt.step()
        return loss

    return net, step
