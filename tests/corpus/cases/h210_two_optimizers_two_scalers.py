"""A GAN in mixed precision: two optimizers with a GradScaler each, and one of them has to calibrate first."""

import torch
from torch import nn

META = {
    "healthy": True,
    "n_steps": 20,
    "skipped_steps": (0, 1, 2, 3, 4, 5, 6, 7),
    "why": "the critic's scaler skips its first steps; the generator's does not, and both then train",
}


class Gan(nn.Module):
    def __init__(self):
        super().__init__()
        self.generator = nn.Sequential(nn.Linear(4, 24), nn.SiLU(), nn.Linear(24, 3))
        self.critic = nn.Sequential(nn.Linear(3, 24), nn.LeakyReLU(0.2), nn.Linear(24, 1))


def build(fixed: bool = False):
    torch.manual_seed(610)
    gan = Gan()
    opt_g = torch.optim.Adam(gan.generator.parameters(), lr=1e-3, betas=(0.5, 0.9))
    opt_c = torch.optim.Adam(gan.critic.parameters(), lr=1e-3, betas=(0.5, 0.9))
    scaler_g = torch.amp.GradScaler("cpu", init_scale=2.0**10)
    scaler_c = torch.amp.GradScaler("cpu", init_scale=2.0**24)
    gen = torch.Generator().manual_seed(710)
    judge = nn.functional.binary_cross_entropy_with_logits

    def advance(scaler, opt, loss):
        opt.zero_grad()
        scaler.scale(loss).backward()
        scaler.step(opt)
        scaler.update()

    def step(i):
        real = torch.randn(16, 3, generator=gen) * 0.4 + 1.0
        noise = torch.randn(16, 4, generator=gen)
        with torch.autocast("cpu", dtype=torch.float16):
            fake = gan.generator(noise)
            on_real, on_fake = gan.critic(real).float(), gan.critic(fake.detach()).float()
        c_loss = judge(on_real, torch.ones_like(on_real)) + judge(on_fake, torch.zeros_like(on_fake))
        advance(scaler_c, opt_c, c_loss)
        with torch.autocast("cpu", dtype=torch.float16):
            verdict = gan.critic(gan.generator(noise)).float()
        advance(scaler_g, opt_g, judge(verdict, torch.ones_like(verdict)))
        return c_loss

    return gan, step
