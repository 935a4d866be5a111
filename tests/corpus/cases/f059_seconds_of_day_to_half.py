"""Time of day in seconds is cast to half: after 18:12 it exceeds 65504 and becomes infinite."""

import torch
from torch import nn

META = {
    "origin_op": "_to_copy",
    "phase": "forward",
    "cause": "dtype-overflow",
    "symptom": "loss-nan",
    "first_bad_step": 3,
    "n_steps": 6,
    "fix": "scale to a fraction of the day before the cast",
}


class Rides(nn.Module):
    def __init__(self):
        super().__init__()
        self.zone = nn.Embedding(10, 6)
        self.net = nn.Sequential(nn.Linear(7, 24), nn.ReLU(), nn.Linear(24, 24), nn.ReLU(), nn.Linear(24, 1))

    def forward(self, zone, clock):
        return self.net(torch.cat([self.zone(zone), clock], -1)).squeeze(-1)


def build(fixed: bool = False):
    torch.manual_seed(59)
    net = Rides().half()
    opt = torch.optim.SGD(net.parameters(), lr=1e-3)
    gen = torch.Generator().manual_seed(159)

    def step(i):
        zone = torch.randint(0, 10, (16,), generator=gen)
        seconds = torch.rand(16, 1, generator=gen) * 1800 + 3600 * (15.2 + i)
        if fixed:
            clock = (seconds / 86400).half()
        else:
            clock = seconds.half()  # ORIGIN
            clock = clock / 8640
        y = torch.sin(seconds.squeeze(1) / 1e4)
        opt.zero_grad()
        loss = nn.functional.smooth_l1_loss(net(zone, clock).float(), y)
        loss.backward()
        opt.step()
        return loss

    return net, step
