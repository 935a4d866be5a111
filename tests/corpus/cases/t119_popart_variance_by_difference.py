"""PopArt keeps the mean and the mean square of returns; returns around fifty thousand leave a variance below zero after rounding."""

import torch
from torch import nn

META = {
    "origin_op": "sqrt",
    "phase": "forward",
    "also_phase": "optimizer",
    "cause": "sqrt-of-negative",
    "also_causes": ("sqrt-at-zero",),
    "symptom": "loss-nan",
    "first_bad_step": 6,
    "n_steps": 9,
    "fix": "clamp the variance at 1e-4",
}


class PopArt(nn.Module):
    def __init__(self, least):
        super().__init__()
        self.value = nn.Sequential(nn.Linear(4, 16), nn.Tanh(), nn.Linear(16, 1))
        self.register_buffer("mu", torch.zeros(()))
        self.register_buffer("nu", torch.ones(()))
        self.least = least

    @torch.no_grad()
    def track(self, returns):
        old_mu, old_sigma = self.mu.clone(), self.sigma()
        self.mu.lerp_(returns.mean(), 0.9)
        self.nu.lerp_(returns.square().mean(), 0.9)
        head, sigma = self.value[-1], self.sigma()
        head.weight.mul_(old_sigma / sigma)
        head.bias.mul_(old_sigma).add_(old_mu - self.mu).div_(sigma)

    def sigma(self):
        variance = self.nu - self.mu.square()
        if self.least:
            variance = variance.clamp(min=self.least)
        return torch.sqrt(variance)  # ORIGIN


def build(fixed: bool = False):
    torch.manual_seed(619)
    net = PopArt(1e-4 if fixed else 0.0)
    opt = torch.optim.Adam(net.parameters(), lr=1e-3)
    gen = torch.Generator().manual_seed(719)

    def step(i):
        x = torch.randn(16, 4, generator=gen)
        returns = 54321.9 + 1e-3 * torch.randn(16, 1, generator=gen)
        net.track(returns)
        opt.zero_grad()
        loss = nn.functional.mse_loss(net.value(x), (returns - net.mu) / net.sigma())
        loss.backward()
        opt.step()
        return loss

    return net, step
