"""A Beta likelihood scores a share that was rounded to exactly zero."""

import torch
from torch import nn
from torch.distributions import Beta
from torch.nn import functional as F

META = {
    "origin_op": "xlogy",
    "also_ops": ("log", "mul"),
    "phase": "forward",
    "cause": "infeasible-likelihood",
    "also_causes": ("log-of-zero",),
    "symptom": "loss-inf",
    "first_bad_step": 2,
    "n_steps": 5,
    "fix": "squeeze the shares",
}


class Share(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Linear(5, 2)

    def forward(self, x):
        a, b = F.softplus(self.net(x)).unbind(-1)
        return Beta(a + 0.1, b + 0.1, validate_args=False)


def build(fixed: bool = False):
    torch.manual_seed(512)
    net = Share()
    opt = torch.optim.Adam(net.parameters(), lr=1e-3)
    gen = torch.Generator().manual_seed(1012)

    def step(i):
        opt.zero_grad()
        x = torch.randn(8, 5, generator=gen)
        y = torch.rand(8, generator=gen) * 0.9 + 0.05
        if i == 2:
            y[4] = 0.01 if fixed else 0.0
        loss = -net(x).log_prob(y).mean()  # ORIGIN
        loss.backward()
        opt.step()
        return loss

    return net, step
