"""WGAN with five critic steps inside each generator step; the mode-seeking term divides by the distance of two noise draws that are the same."""

import itertools

import torch
from torch import nn

META = {
    "origin_op": "div",
    "phase": "forward",
    "cause": "div-by-zero",
    "symptom": "loss-nan",
    "first_bad_step": 4,
    "n_steps": 6,
    "fix": "draw the second noise anew, and add an epsilon to the distance",
}


def mlp(*sizes):
    layers = []
    for a, b in itertools.pairwise(sizes):
        layers += [nn.Linear(a, b), nn.LeakyReLU(0.2)]
    return nn.Sequential(*layers[:-1])


class GAN(nn.Module):
    def __init__(self):
        super().__init__()
        self.gen, self.critic = mlp(6, 24, 24, 3), mlp(3, 24, 24, 1)


def build(fixed: bool = False):
    torch.manual_seed(0)
    gan = GAN()
    opt_d = torch.optim.RMSprop(gan.critic.parameters(), lr=5e-4)
    opt_g = torch.optim.RMSprop(gan.gen.parameters(), lr=5e-4)
    rng = torch.Generator().manual_seed(1)
    cache = {}

    def train_critic():
        for _ in range(5):
            real = torch.randn(16, 3, generator=rng) * 0.4 + 1.0
            fake = gan.gen(torch.randn(16, 6, generator=rng)).detach()
            loss_d = gan.critic(fake).mean() - gan.critic(real).mean()
            opt_d.zero_grad()
            loss_d.backward()
            opt_d.step()
            for p in gan.critic.parameters():
                p.data.clamp_(-0.05, 0.05)

    def noise(i):
        fresh = torch.randn(16, 6, generator=rng)
        if i == 4 and not fixed:
            return cache["z"]  # the buffer of the first draw is handed out again
        return fresh

    def step(i):
        train_critic()
        cache["z"] = torch.randn(16, 6, generator=rng)
        z1, z2 = cache["z"], noise(i)
        a, b = gan.gen(z1), gan.gen(z2)
        spread = (a - b).abs().mean() / ((z1 - z2).abs().mean() + (1e-6 if fixed else 0.0))  # ORIGIN
        loss_g = -gan.critic(a).mean() - 0.1 * spread
        opt_g.zero_grad()
        loss_g.backward()
        opt_g.step()
        return loss_g

    return gan, step
