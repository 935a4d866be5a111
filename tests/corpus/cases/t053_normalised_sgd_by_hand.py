"""Normalised gradient descent written by hand: each tensor's gradient is divided by its norm, and a converged bias has none."""

import torch
from torch import nn

META = {
    "origin_op": "div",
    "phase": "optimizer",
    "cause": "optimizer-arithmetic",
    "also_causes": ("div-by-zero", "norm-at-zero"),
    "symptom": "param-nan",
    "first_bad_step": 5,
    "n_steps": 8,
    "twin_rests": (5, 6),
    "fix": "divide by norm + 1e-8",
}


class Hinge(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(2, 1)

    def forward(self, x):
        return self.linear(x).squeeze(-1)


def build(fixed: bool = False):
    torch.manual_seed(453)
    net = Hinge()
    gen = torch.Generator().manual_seed(553)
    least = 1e-8 if fixed else 0.0

    def step(i):
        y = torch.randint(0, 2, (12,), generator=gen) * 2.0 - 1
        x = 0.2 * torch.randn(12, 2, generator=gen) + y.unsqueeze(1) * torch.tensor([2.0, 1.0])
        net.zero_grad()
        loss = torch.relu(1 - y * net(x)).mean()
        loss.backward()
        with torch.no_grad():
            for p in net.parameters():
                direction = p.grad / (p.grad.norm() + least)  # ORIGIN
                p -= 0.1 * direction
        return loss

    return net, step
