"""Energy-based model whose negative samples come of a Langevin chain, with backward passes of its own, before each update."""

import torch
from torch import nn

META = {
    "healthy": True,
    "n_steps": 5,
    "why": "the chain differentiates by its samples alone; the weights are frozen meanwhile",
}


def build(fixed: bool = False):
    torch.manual_seed(3220)
    energy = nn.Sequential(nn.Linear(2, 16), nn.SiLU(), nn.Linear(16, 1))
    opt = torch.optim.Adam(energy.parameters(), lr=1e-3)

    def step(i):
        real = 0.5 * torch.randn(16, 2) + 1
        x = torch.randn(16, 2)
        energy.requires_grad_(False)
        for _ in range(4):
            x = x.detach().requires_grad_(True)
            energy(x).sum().backward()
            x = x.data - 0.05 * x.grad + 0.01 * torch.randn_like(x)
        energy.requires_grad_(True)
        real_energy, made_energy = energy(real), energy(x.detach())
        loss = real_energy.mean() - made_energy.mean() + 0.1 * (real_energy**2 + made_energy**2).mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
        return loss.detach()

    return energy, step
