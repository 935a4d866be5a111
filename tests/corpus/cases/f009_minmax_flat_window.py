"""Per-window min-max scaling inside the model: a sensor that stood still gives 0/0."""

import torch
from torch import nn

META = {
    "origin_op": "div",
    "phase": "forward",
    "cause": "div-by-zero",
    "also_causes": ("std-of-constant",),
    "symptom": "loss-nan",
    "first_bad_step": 5,
    "n_steps": 8,
    "fix": "clamp the range from below",
}


class MinMax(nn.Module):
    def __init__(self, floor):
        super().__init__()
        self.floor = floor

    def forward(self, x):
        low, high = x.amin(-1, keepdim=True), x.amax(-1, keepdim=True)
        return (x - low) / (high - low).clamp_min(self.floor)  # ORIGIN


def build(fixed: bool = False):
    torch.manual_seed(9)
    net = nn.Sequential(
        MinMax(1e-6 if fixed else 0.0),
        nn.Conv1d(3, 12, 5, padding=2),
        nn.GELU(),
        nn.Conv1d(12, 12, 5, padding=2, stride=2),
        nn.GELU(),
        nn.AdaptiveAvgPool1d(1),
        nn.Flatten(),
        nn.Linear(12, 2),
    )
    opt = torch.optim.AdamW(net.parameters(), lr=2e-3)
    gen = torch.Generator().manual_seed(109)

    def step(i):
        x = torch.randn(6, 3, 24, generator=gen).cumsum(-1)
        if i == 5:
            x[2, 1] = 17.5  # the channel froze
        y = (x[:, 0, -1] > 0).long()
        opt.zero_grad()
        loss = nn.functional.cross_entropy(net(x), y)
        loss.backward()
        opt.step()
        return loss

    return net, step
