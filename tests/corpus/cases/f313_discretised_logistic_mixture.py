"""The likelihood of a discretised logistic: log(cdf difference) sits in a where that avoids it, and its gradient comes back as NaN."""

import torch
from torch import nn

META = {
    "origin_op": "log",
    "phase": "backward",
    "cause": "where-grad-trap",
    "symptom": "grad-nan",
    "first_bad_step": 4,
    "n_steps": 6,
    "fix": "clamp the difference before the log",
    "also_causes": ["log-of-zero"],
}


class PixelNet(nn.Module):
    def __init__(self, floor):
        super().__init__()
        self.floor = floor
        self.net = nn.Sequential(nn.Conv2d(1, 8, 3, padding=1), nn.ELU(), nn.Conv2d(8, 2, 1))

    def log_prob(self, x, ctx):
        mean, log_s = self.net(ctx).chunk(2, 1)
        log_s = log_s.clamp_min(-5.0)
        centred, inv = x - mean, torch.exp(-log_s)
        upper = torch.sigmoid(inv * (centred + 1 / 255))
        lower = torch.sigmoid(inv * (centred - 1 / 255))
        delta = upper - lower
        if self.floor:
            delta = delta.clamp_min(1e-12)
        mid = inv * centred
        tail = mid - log_s - 2 * nn.functional.softplus(mid) - 4.84
        return torch.where(delta > 1e-5, torch.log(delta), tail)  # ORIGIN


def build(fixed: bool = False):
    torch.manual_seed(711)
    net = PixelNet(fixed)
    opt = torch.optim.Adam(net.parameters(), lr=1e-3)
    gen = torch.Generator().manual_seed(712)

    def step(i):
        x = torch.rand(4, 1, 8, 8, generator=gen) * 2 - 1
        if i == 4:
            x[2] = x[2] * 40  # forgot to rescale one file
        ctx = nn.functional.pad(x, (1, 0, 0, 0))[..., :-1].clamp(-1, 1)
        opt.zero_grad()
        loss = -net.log_prob(x, ctx).mean()
        loss.backward()
        nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        opt.step()
        return loss

    return net, step
