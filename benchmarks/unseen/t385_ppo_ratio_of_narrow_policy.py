"""PPO with a Gaussian policy: a stored action lies far outside the narrowed policy and exp of the log-ratio overflows."""
import math

import torch
from torch import nn

META = {
    "origin_op": "exp",
    "phase": "forward",
    "cause": "exp-overflow",
    "symptom": "loss-inf",
    "first_bad_step": 3,
    "n_steps": 6,
    "fix": "clamp the log-ratio before the exponential",
}


class Gaussian(nn.Module):
    def __init__(self):
        super().__init__()
        self.mu = nn.Sequential(nn.Linear(5, 16), nn.Tanh(), nn.Linear(16, 2))
        self.log_std = nn.Parameter(torch.zeros(2))

    def log_prob(self, s, a):
        std = self.log_std.exp()
        return (-0.5 * ((a - self.mu(s)) / std) ** 2 - self.log_std - 0.5 * math.log(2 * math.pi)).sum(-1)


def build(fixed: bool = False):
    torch.manual_seed(31)
    pi = Gaussian()
    opt = torch.optim.Adam(pi.parameters(), lr=1e-3)
    gen = torch.Generator().manual_seed(32)
    log = []

    def step(i):
        s = torch.randn(24, 5, generator=gen)
        with torch.no_grad():
            a = pi.mu(s) + pi.log_std.exp() * torch.randn(24, 2, generator=gen)
            old = pi.log_prob(s, a)
            if i == 3:
                old[7] -= 95.0  # the behaviour policy of a stale worker gave this action hardly any density
        adv = torch.randn(24, generator=gen)
        adv[7] = -1.0
        for epoch in range(3):
            log_ratio = pi.log_prob(s, a) - old
            if fixed:
                log_ratio = log_ratio.clamp(-10.0, 10.0)
            ratio = torch.exp(log_ratio)  # ORIGIN
            clipped = ratio.clamp(0.8, 1.2)
            loss = -torch.min(ratio * adv, clipped * adv).mean()
            opt.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(pi.parameters(), 1.0)
            opt.step()
            with torch.no_grad():
                log.append(((ratio - 1).abs() > 0.2).float().mean().item())
        return loss

    return pi, step
