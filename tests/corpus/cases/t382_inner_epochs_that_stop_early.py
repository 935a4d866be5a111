"""Fitted Q iteration: each call fits to a fixed target for up to six passes, fewer when the error is small; later a softmax temperature underflows."""

import torch
from torch import nn

META = {
    "origin_op": "div",
    "phase": "forward",
    "cause": "div-by-zero",
    "symptom": "loss-nan",
    "first_bad_step": 4,
    "n_steps": 6,
    "fix": "a floor under the temperature",
}


def build(fixed: bool = False):
    torch.manual_seed(770)
    q = nn.Sequential(nn.Linear(3, 16), nn.ReLU(), nn.Linear(16, 2))
    opt = torch.optim.Adam(q.parameters(), lr=1e-2)
    gen = torch.Generator().manual_seed(771)
    temperature = torch.tensor(1.0)
    floor = 1e-3 if fixed else 0.0

    @torch.no_grad()
    def soft_value(s):
        v = q(s)
        return (v * torch.softmax(v / temperature, 1)).sum(1)  # ORIGIN

    def step(i):
        nonlocal temperature
        s, s2 = torch.randn(12, 3, generator=gen), torch.randn(12, 3, generator=gen)
        a = torch.randint(0, 2, (12, 1), generator=gen)
        temperature = (temperature - 0.25 * (i > 0)).clamp_min(floor)
        goal = s[:, 0] + 0.5 * soft_value(s2)
        for k in range(6):
            loss = nn.functional.mse_loss(q(s).gather(1, a).squeeze(1), goal)
            if loss < 0.6 and k:
                break
            opt.zero_grad()
            loss.backward()
            opt.step()
        return loss

    return q, step
