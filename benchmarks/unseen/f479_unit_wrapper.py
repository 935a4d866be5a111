"""A tensor wrapper with units: a velocity is a distance over a time, and one reading has no duration."""
from dataclasses import dataclass

import torch
from torch import nn

META = {
    "origin_op": "div", "phase": "forward", "cause": "div-by-zero", "symptom": "loss-inf",
    "first_bad_step": 2, "n_steps": 4, "fix": "a floor under the duration",
}


@dataclass(frozen=True)
class Quantity:
    value: torch.Tensor
    unit: str

    def __truediv__(self, other: "Quantity") -> "Quantity":
        return Quantity(self.value / other.value, f"{self.unit}/{other.unit}")  # ORIGIN

    def __sub__(self, other: "Quantity") -> "Quantity":
        assert self.unit == other.unit
        return Quantity(self.value - other.value, self.unit)

    def at_least(self, low: float) -> "Quantity":
        return Quantity(self.value.clamp_min(low), self.unit)


class Odometry(nn.Module):
    def __init__(self):
        super().__init__()
        self.slip = nn.Linear(3, 1)

    def forward(self, ticks, context):
        return Quantity(ticks * (1 + 0.1 * torch.tanh(self.slip(context).squeeze(-1))), "m")


def build(fixed=False):
    torch.manual_seed(159)
    net = Odometry()
    opt = torch.optim.Adam(net.parameters(), lr=1e-3)
    gen = torch.Generator().manual_seed(160)

    def step(i):
        ticks, context = torch.rand(9, generator=gen) + 1, torch.randn(9, 3, generator=gen)
        start = torch.rand(9, generator=gen)
        stop = start + 0.5 + torch.rand(9, generator=gen)
        if i >= 2:
            stop[4] = start[4]
        duration = Quantity(stop, "s") - Quantity(start, "s")
        if fixed:
            duration = duration.at_least(0.05)
        speed = net(ticks, context) / duration  # ALSO
        loss = nn.functional.l1_loss(speed.value, torch.ones(9))
        opt.zero_grad()
        loss.backward()
        opt.step()
        return loss

    return net, step
