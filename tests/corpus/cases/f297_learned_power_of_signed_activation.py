"""An activation x ** p with a learned exponent that begins at two: the square of a negative number is fine, its
derivative in p is not.
"""

import torch
from torch import nn

META = {
    "origin_op": "pow",
    "also_ops": ["log"],
    "phase": "backward",
    "cause": "pow-negative-base",
    "symptom": "grad-nan",
    "first_bad_step": 0,
    "n_steps": 4,
    "fix": "raise the magnitude, plus a small number, and put the sign back",
}


class LearnedPower(nn.Module):
    def __init__(self, width, safe):
        super().__init__()
        self.exponent = nn.Parameter(torch.full((width,), 2.0))
        self.safe = safe

    def forward(self, x):
        if self.safe:
            return torch.sign(x) * (x.abs() + 1e-6) ** self.exponent
        return x**self.exponent  # ORIGIN


def build(fixed: bool = False):
    torch.manual_seed(939)
    net = nn.Sequential(nn.Linear(6, 12), LearnedPower(12, fixed), nn.LayerNorm(12), nn.Linear(12, 1))
    opt = torch.optim.Adam(net.parameters(), lr=2e-3)
    gen = torch.Generator().manual_seed(39)

    def step(i):
        x = torch.randn(20, 6, generator=gen)
        y = x.square().sum(1, keepdim=True)
        opt.zero_grad()
        loss = nn.functional.mse_loss(net(x), y)
        loss.backward()
        opt.step()
        return loss

    return net, step
