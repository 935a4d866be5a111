"""A small GAN: two optimizers, a detached fake batch, and discriminator gradients that the generator's step leaves behind."""

import torch
from torch import nn

META = {"healthy": True, "n_steps": 6, "why": "each optimizer moves its own half; the losses oscillate and stay finite"}


class GAN(nn.Module):
    def __init__(self):
        super().__init__()
        self.g = nn.Sequential(nn.Linear(4, 24), nn.ReLU(), nn.Linear(24, 2))
        self.d = nn.Sequential(nn.Linear(2, 24), nn.LeakyReLU(0.2), nn.Linear(24, 1))


def build(fixed: bool = False):
    torch.manual_seed(27)
    gan = GAN()
    opt_g = torch.optim.Adam(gan.g.parameters(), lr=1e-3, betas=(0.5, 0.99))
    opt_d = torch.optim.Adam(gan.d.parameters(), lr=2e-3, betas=(0.5, 0.99))
    gen = torch.Generator().manual_seed(327)

    def step(i):
        real = 0.3 * torch.randn(16, 2, generator=gen) + torch.tensor([1.0, -1.0])
        fake = gan.g(torch.randn(16, 4, generator=gen))
        opt_d.zero_grad()
        d_loss = nn.functional.softplus(-gan.d(real)).mean() + nn.functional.softplus(gan.d(fake.detach())).mean()
        d_loss.backward()
        opt_d.step()
        opt_g.zero_grad()
        g_loss = nn.functional.softplus(-gan.d(fake)).mean()
        g_loss.backward()
        opt_g.step()
        return g_loss

    return gan, step
