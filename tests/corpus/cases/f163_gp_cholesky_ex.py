"""A Gaussian process takes its log-determinant from cholesky_ex without looking at info; two equal inputs leave a zero on the diagonal."""

import torch
from torch import nn

META = {
    "origin_op": "log",
    "also_ops": ("linalg_cholesky_ex",),
    "phase": "forward",
    "cause": "log-of-zero",
    "also_causes": ("degenerate-matrix", "log-of-negative"),
    "symptom": "loss-inf",
    "first_bad_step": 2,
    "n_steps": 5,
    "fix": "add jitter to the kernel",
}


class Gp(nn.Module):
    def __init__(self, jitter):
        super().__init__()
        self.log_scale = nn.Parameter(torch.zeros(()))
        self.jitter = jitter

    def forward(self, x, y):
        d2 = (x[:, None] - x[None]).square().sum(-1)
        k = torch.exp(-0.5 * d2 / self.log_scale.exp()) + self.jitter * torch.eye(len(x))
        chol, _ = torch.linalg.cholesky_ex(k)
        logdet = 2 * chol.diagonal().log().sum()  # ORIGIN
        return 0.5 * (logdet + y.square().sum())


def build(fixed: bool = False):
    torch.manual_seed(306)
    net = Gp(1e-2 if fixed else 0.0)
    opt = torch.optim.Adam(net.parameters(), lr=1e-3)
    gen = torch.Generator().manual_seed(806)

    def step(i):
        opt.zero_grad()
        x = 5 * torch.randn(4, 2, generator=gen)
        if i == 2:
            x[1] = x[0]
        loss = net(x, x[:, 0])
        loss.backward()
        opt.step()
        return loss

    return net, step
