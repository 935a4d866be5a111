"""Muon on a low-rank adapter: the up matrix starts at zero, so the down matrix has no gradient in the first step and its norm is zero."""

import torch
from torch import nn

META = {
    "origin_op": "div",
    "phase": "optimizer",
    "cause": "div-by-zero",
    "also_causes": ("norm-at-zero", "optimizer-arithmetic"),
    "symptom": "param-nan",
    "first_bad_step": 0,
    "n_steps": 4,
    "fix": "norm + 1e-7",
}


class Muon(torch.optim.Optimizer):
    def __init__(self, params, lr=0.02, momentum=0.95, eps=0.0):
        super().__init__(params, {"lr": lr, "momentum": momentum, "eps": eps})

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            for p in group["params"]:
                buf = self.state[p].setdefault("buf", torch.zeros_like(p))
                buf.mul_(group["momentum"]).add_(p.grad)
                update = self.orthogonalise(buf, group["eps"])
                p.add_(update, alpha=-group["lr"])

    @staticmethod
    def orthogonalise(g, eps):
        x = g / (g.norm() + eps)  # ORIGIN
        for _ in range(5):
            a = x @ x.T
            x = 3.4445 * x + (-4.7750 * a + 2.0315 * a @ a) @ x
        return x


class Adapted(nn.Module):
    def __init__(self):
        super().__init__()
        self.base = nn.Linear(12, 6).requires_grad_(False)
        self.down = nn.Parameter(torch.randn(3, 12) / 12)
        self.up = nn.Parameter(torch.zeros(6, 3))

    def forward(self, x):
        return self.base(x) + x @ self.down.T @ self.up.T


def build(fixed: bool = False):
    torch.manual_seed(610)
    net = Adapted()
    opt = Muon([net.down, net.up], eps=1e-7 if fixed else 0.0)
    gen = torch.Generator().manual_seed(710)

    def step(i):
        x = torch.randn(16, 12, generator=gen)
        opt.zero_grad()
        loss = nn.functional.mse_loss(net(x), x[:, :6])
        loss.backward()
        opt.step()
        return loss

    return net, step
