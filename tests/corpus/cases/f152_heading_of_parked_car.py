"""A trajectory loss takes headings by atan2 of velocities; a parked car moves 1e-22 metres, whose square is subnormal in the derivative."""

import torch
from torch import nn

META = {
    "origin_op": "atan2",
    "phase": "backward",
    "cause": "inverse-function-at-edge",
    "also_causes": ("div-by-tiny", "div-by-zero"),
    "symptom": "grad-nan",
    "first_bad_step": 2,
    "n_steps": 5,
    "fix": "leave slow cars out of the heading loss",
}


class Motion(nn.Module):
    def __init__(self):
        super().__init__()
        self.gain = nn.Parameter(torch.ones(2))
        self.gru = nn.GRU(2, 12, batch_first=True)
        self.out = nn.Linear(12, 2)

    def forward(self, vel):
        h, _ = self.gru(vel)
        return vel * self.gain + 1e-30 * self.out(h)


def heading(v):
    return torch.atan2(v[..., 1], v[..., 0])  # ORIGIN


def build(fixed: bool = False):
    torch.manual_seed(250)
    net = Motion()
    opt = torch.optim.Adam(net.parameters(), lr=1e-3)
    gen = torch.Generator().manual_seed(750)

    def step(i):
        opt.zero_grad()
        vel = torch.randn(5, 6, 2, generator=gen)
        if i == 2:
            vel[2, 3:] = 1e-22
        pred = net(vel)
        moving = vel.norm(dim=-1) > 1e-3
        target = torch.roll(vel, 1, 1)
        if fixed:
            loss = (heading(pred[moving]) - heading(target[moving])).cos().neg().mean()
        else:
            loss = (heading(pred) - heading(target) + 0.3).cos().neg().mean()
        loss.backward()
        opt.step()
        return loss

    return net, step
