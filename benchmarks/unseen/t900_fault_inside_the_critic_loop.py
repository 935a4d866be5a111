"""The third of five critic steps meets two samples that coincide: the Lipschitz quotient is divided by their distance."""
import torch
from torch import nn

META = {
    "origin_op": "div",
    "phase": "forward",
    "cause": "div-by-zero",
    "also_causes": ("norm-at-zero",),
    "symptom": "loss-nan",
    "first_bad_step": 3,
    "n_steps": 5,
    "fix": "an epsilon beside the distance",
}


def build(fixed: bool = False):
    torch.manual_seed(700)
    net = nn.ModuleList([nn.Linear(3, 2), nn.Sequential(nn.Linear(2, 16), nn.ReLU(), nn.Linear(16, 1))])
    gen_net, critic = net
    opt_d, opt_g = torch.optim.Adam(critic.parameters(), lr=1e-3), torch.optim.Adam(gen_net.parameters(), lr=1e-3)
    gen = torch.Generator().manual_seed(701)
    eps = 1e-8 if fixed else 0.0

    def step(i):
        for k in range(5):
            real = torch.randn(8, 2, generator=gen)
            fake = gen_net(torch.randn(8, 3, generator=gen)).detach()
            if i == 3 and k == 2:
                fake[1] = real[1]  # memorised
            gap = (critic(real) - critic(fake)).abs().squeeze(1)
            lip = gap / ((real - fake).norm(dim=1) + eps)  # ORIGIN
            loss_d = critic(fake).mean() - critic(real).mean() + torch.relu(lip - 1).pow(2).mean()
            opt_d.zero_grad()
            loss_d.backward()
            opt_d.step()
        loss_g = -critic(gen_net(torch.randn(8, 3, generator=gen))).mean()
        opt_g.zero_grad()
        loss_g.backward()
        opt_g.step()
        return loss_d + loss_g

    return net, step
