"""A hard-concrete gate writes the Bernoulli KL by hand; a gate that clamps to exactly one leaves (1 - p) log(1 - p)."""

import torch
from torch import nn
from torch.nn import functional as F

META = {
    "origin_op": "log",
    "phase": "forward",
    "cause": "log-of-zero",
    "also_causes": ("zero-times-inf",),
    "symptom": "loss-nan",
    "first_bad_step": 2,
    "n_steps": 5,
    "fix": "clamp p inside (0, 1)",
}


class Gates(nn.Module):
    def __init__(self, eps):
        super().__init__()
        self.eps = eps
        self.logit = nn.Parameter(torch.zeros(6))
        self.lin = nn.Linear(6, 2)

    def forward(self, x, boost):
        p = (torch.sigmoid(self.logit + boost) * 1.2 - 0.1).clamp(self.eps, 1 - self.eps)
        kl = p * torch.log(p / 0.3) + (1 - p) * torch.log((1 - p) / 0.7)  # ORIGIN
        return self.lin(x * p), kl.sum()


def build(fixed: bool = False):
    torch.manual_seed(503)
    net = Gates(1e-4 if fixed else 0.0)
    opt = torch.optim.Adam(net.parameters(), lr=1e-3)
    gen = torch.Generator().manual_seed(1003)

    def step(i):
        opt.zero_grad()
        x = torch.randn(8, 6, generator=gen)
        boost = torch.zeros(6)
        if i == 2:
            boost[3] = 8.0
        out, kl = net(x, boost)
        loss = F.cross_entropy(out, torch.arange(8) % 2) + 0.01 * kl
        loss.backward()
        opt.step()
        return loss

    return net, step
