"""A WGAN with gradient penalty, several critic steps for one of the generator. sqrt-at-zero norm-at-zero"""
import argparse

import torch
from torch import autograd, nn


def mlp(i, o):
    return nn.Sequential(nn.Linear(i, 32), nn.LeakyReLU(0.2), nn.Linear(32, 32), nn.LeakyReLU(0.2), nn.Linear(32, o))


def penalty(critic, real, fake, weight, repaired):
    mix = torch.rand(len(real), 1)
    x = (mix * real + (1 - mix) * fake).requires_grad_(True)
    score = critic(x) * weight
    (g,) = autograd.grad(score.sum(), x, create_graph=True)
    if repaired:
        return ((g.pow(2).sum(1) + 1e-12).sqrt() - 1).pow(2).mean()
    return (g.pow(2).sum(1).sqrt() - 1).pow(2).mean()  # FAULT


def sample_real(n):
    angle = torch.rand(n) * 6.2831853
    return torch.stack([angle.cos(), angle.sin()], 1) + 0.05 * torch.randn(n, 2)


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--steps", type=int, default=400)
    ap.add_argument("--late", type=int, default=300)
    ap.add_argument("--repaired", action="store_true")
    ap.add_argument("--n-critic", type=int, default=2)
    a = ap.parse_args()
    torch.manual_seed(3)
    gen, critic = mlp(4, 2), mlp(2, 1)
    opt_g = torch.optim.Adam(gen.parameters(), 1e-3, betas=(0.5, 0.9))
    opt_c = torch.optim.Adam(critic.parameters(), 1e-3, betas=(0.5, 0.9))
    rounds = a.steps // (a.n_critic + 1)
    bad = a.late // (a.n_critic + 1)
    for it in range(rounds):
        for k in range(a.n_critic):
            real = sample_real(32)
            weight = torch.ones(32, 1)
            if it == bad and k == 1:
                weight[5] = 0.0  # a sample that does not count
            with torch.no_grad():
                fake = gen(torch.randn(32, 4))
            opt_c.zero_grad()
            loss_c = (critic(fake) - critic(real)).mean() + 10 * penalty(critic, real, fake, weight, a.repaired)
            loss_c.backward()
            opt_c.step()
        opt_g.zero_grad()
        loss_g = -critic(gen(torch.randn(32, 4))).mean()
        loss_g.backward()
        opt_g.step()
        if it % 100 == 0:
            print(f"{it} {loss_c.item():.3f} {loss_g.item():.3f}")


if __name__ == "__main__":
    main()
