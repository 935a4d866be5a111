"""Energy-based model: the negatives are found by an inner chain of noisy gradient steps, and a log-ratio of -inf is only counted."""
import torch
from torch import nn

META = {"healthy": True, "n_steps": 5}


def build(fixed: bool = False):
    torch.manual_seed(640)
    energy = nn.Sequential(nn.Linear(2, 16), nn.Softplus(), nn.Linear(16, 1))
    opt = torch.optim.Adam(energy.parameters(), lr=1e-3, betas=(0.0, 0.999))
    gen = torch.Generator().manual_seed(641)
    replay = torch.rand(32, 2, generator=gen)
    rejected = 0

    def sample(n):
        nonlocal rejected
        idx = torch.randperm(32, generator=gen)[:n]
        x = replay[idx]
        for _ in range(4):
            x = x.detach().requires_grad_(True)
            (g,) = torch.autograd.grad(energy(x).sum(), x)
            prop = (x - 0.1 * g + 0.05 * torch.randn(n, 2, generator=gen)).detach()
            inside = (prop.abs() < 1.5).all(1)
            log_ratio = torch.log(inside.float())
            rejected += int(torch.isinf(log_ratio).sum())
            x = torch.where(inside[:, None], prop, x.detach())
        replay[idx] = x
        return x

    def step(i):
        real = torch.randn(12, 2, generator=gen) * 0.5
        pos, neg = energy(real), energy(sample(12))
        loss = (pos - neg).mean() + 0.1 * (pos**2 + neg**2).mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
        return loss

    return energy, step
