"""A GAN with two optimizers: the generator's Adam is sound, the critic's RMSprop has eps=0 and meets units without gradient."""

import torch
from torch import nn

META = {
    "origin_op": "addcdiv_",
    "phase": "optimizer",
    "cause": "optimizer-arithmetic",
    "also_causes": ("div-by-zero", "optimizer-eps-underflow"),
    "symptom": "param-nan",
    "first_bad_step": 0,
    "n_steps": 4,
    "fix": "eps=1e-8 for the critic too",
}


class Gan(nn.Module):
    def __init__(self):
        super().__init__()
        self.generator = nn.Sequential(nn.Linear(4, 16), nn.ELU(), nn.Linear(16, 2))
        self.critic = nn.Sequential(nn.Linear(2, 24), nn.ReLU(), nn.Linear(24, 1))
        nn.init.constant_(self.critic[0].bias[:3], -20.0)


def build(fixed: bool = False):
    torch.manual_seed(452)
    gan = Gan()
    opt_g = torch.optim.Adam(gan.generator.parameters(), lr=1e-3)
    opt_c = torch.optim.RMSprop(gan.critic.parameters(), lr=1e-4, eps=1e-8 if fixed else 0.0)
    gen = torch.Generator().manual_seed(552)

    def step(i):
        real = torch.randn(16, 2, generator=gen) * 0.3 + 1.0
        fake = gan.generator(torch.randn(16, 4, generator=gen))
        g_loss = -gan.critic(fake).mean()
        opt_g.zero_grad()
        g_loss.backward()
        opt_g.step()
        opt_c.zero_grad()
        c_loss = gan.critic(fake.detach()).mean() - gan.critic(real).mean()
        c_loss.backward()
        opt_c.step()  # ORIGIN
        return c_loss

    return gan, step
