"""Reynolds-like ratio of two learned fields: NaN is overwritten in place after the division, its backward divides by zero again."""

import torch
from torch import nn

META = {
    "origin_op": "div",
    "phase": "backward",
    "cause": "repair-forward-only",
    "also_causes": ("div-by-zero",),
    "symptom": "grad-nan",
    "first_bad_step": 4,
    "n_steps": 7,
    "fix": "divide only where the denominator is not zero",
}


class Closure(nn.Module):
    def __init__(self, safe):
        super().__init__()
        self.safe = safe
        self.inertia = nn.Sequential(nn.Linear(3, 16), nn.Tanh(), nn.Linear(16, 1))
        self.viscous = nn.Sequential(nn.Linear(3, 16), nn.Tanh(), nn.Linear(16, 1))
        self.out = nn.Linear(1, 2)

    def forward(self, state, wet):
        top = self.inertia(state) * wet
        below = nn.functional.softplus(self.viscous(state)) * wet
        if self.safe:
            below = torch.where(wet > 0, below, torch.ones_like(below))
        ratio = top / below  # ORIGIN
        ratio[torch.isnan(ratio)] = 0.0
        return self.out(ratio)


def build(fixed: bool = False):
    torch.manual_seed(42)
    net = Closure(fixed)
    opt = torch.optim.Adam(net.parameters(), lr=2e-3)
    gen = torch.Generator().manual_seed(142)

    def step(i):
        state = torch.randn(20, 3, generator=gen)
        wet = torch.ones(20, 1)
        if i >= 4:
            wet[12:15] = 0.0  # cells that fell dry
        target = state[:, :2] * wet
        opt.zero_grad()
        loss = nn.functional.mse_loss(net(state, wet), target)
        loss.backward()
        opt.step()
        return loss

    return net, step
