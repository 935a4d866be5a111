"""A Bures distance sums roots of eigenvalues; the covariance as E[xx] - mm in float32 with a large mean has
negative ones.
"""

import torch
from torch import nn

META = {
    "origin_op": "sqrt",
    "phase": "forward",
    "cause": "sqrt-of-negative",
    "symptom": "loss-nan",
    "first_bad_step": 2,
    "n_steps": 3,
    "fix": "centre before multiplying, and add a jitter",
}


def covariance(x, centred):
    if centred:
        x = x - x.mean(0)
        return x.T @ x / len(x) + 1e-4 * torch.eye(x.shape[1])
    return torch.einsum("ni,nj->ij", x, x) / len(x) - torch.outer(x.mean(0), x.mean(0))


def bures(a, b):
    root = torch.linalg.eigvalsh(a).sqrt().sum()  # ORIGIN
    return a.trace() + b.trace() - 2 * root * torch.linalg.eigvalsh(b).clamp(min=1e-6).sqrt().sum()


def build(fixed: bool = False):
    torch.manual_seed(956)
    net = nn.Linear(4, 4)
    opt = torch.optim.SGD(net.parameters(), lr=1e-6)
    gen = torch.Generator().manual_seed(961)
    with torch.no_grad():
        net.weight.mul_(1e-4)

    def step(i):
        opt.zero_grad()
        x = torch.randn(32, 4, generator=gen)
        if i >= 2:
            x = x * 1e-3 + 500.0
        out = x + net(x / 500.0)
        loss = bures(covariance(out, fixed), torch.eye(4))
        loss.backward()
        opt.step()
        return loss

    return net, step
