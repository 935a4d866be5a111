"""A continuous-time linear model takes matrix_exp of its generator times a time gap; a gap of a year in seconds overflows."""

import torch
from torch import nn
from torch.nn import functional as F

META = {
    "origin_op": "linalg_matrix_exp",
    "also_ops": ("matrix_exp", "mul", "mm", "bmm", "matmul"),
    "phase": "forward",
    "cause": "exp-overflow",
    "also_causes": ("dtype-overflow",),
    "symptom": "loss-nan",
    "first_bad_step": 2,
    "n_steps": 5,
    "fix": "measure time in days",
}


class Dyn(nn.Module):
    def __init__(self):
        super().__init__()
        self.gen = nn.Parameter(0.1 * torch.randn(4, 4))
        self.out = nn.Linear(4, 1)

    def forward(self, x, gap):
        trans = torch.linalg.matrix_exp(self.gen * gap[:, None, None])  # ORIGIN
        return self.out((trans @ x[..., None]).squeeze(-1)).squeeze(-1)


def build(fixed: bool = False):
    torch.manual_seed(323)
    net = Dyn()
    opt = torch.optim.Adam(net.parameters(), lr=1e-3)
    gen = torch.Generator().manual_seed(823)

    def step(i):
        opt.zero_grad()
        x = torch.randn(6, 4, generator=gen)
        gap = torch.rand(6, generator=gen)
        if i == 2 and not fixed:
            gap[1] = 3.15e7
        loss = F.mse_loss(net(x, gap), x[:, 0])
        loss.backward()
        opt.step()
        return loss

    return net, step
