"""Diffusion with an SNR-weighted loss: the schedule is rounded to exactly one at t = 0, where SNR = ab / (1 - ab) is x/0."""

import torch
from torch import nn

META = {
    "origin_op": "div",
    "phase": "forward",
    "cause": "div-by-zero",
    "symptom": "loss-inf",
    "first_bad_step": 4,
    "n_steps": 7,
    "fix": "clamp the noise variance from below",
}


class EpsNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.time = nn.Embedding(50, 8)
        self.net = nn.Sequential(nn.Linear(12, 32), nn.SiLU(), nn.Linear(32, 32), nn.SiLU(), nn.Linear(32, 4))

    def forward(self, x, t):
        return self.net(torch.cat([x, self.time(t)], -1))


def build(fixed: bool = False):
    torch.manual_seed(75)
    net = EpsNet()
    opt = torch.optim.AdamW(net.parameters(), lr=1e-3)
    gen = torch.Generator().manual_seed(175)
    alpha_bar = torch.cos(0.5 * torch.pi * torch.arange(50) / 50).square()
    floor = 1e-3 if fixed else 0.0

    def step(i):
        t = torch.randint(1, 50, (16,), generator=gen)
        if i == 4:
            t[10] = 0
        x0, noise = torch.randn(16, 4, generator=gen), torch.randn(16, 4, generator=gen)
        ab = alpha_bar[t].unsqueeze(1)
        pred = net(ab.sqrt() * x0 + (1 - ab).sqrt() * noise, t)
        snr = ab / (1 - ab).clamp_min(floor)  # ORIGIN
        opt.zero_grad()
        loss = (snr * (pred - noise).square()).mean()
        loss.backward()
        opt.step()
        return loss

    return net, step
