"""A GAN discriminator loss takes log(1 + eps - p) with eps = 1e-9: in float32 1 + 1e-9 is one, and a sure p leaves log 0."""

import torch
from torch import nn
from torch.nn import functional as F

META = {
    "origin_op": "log",
    "phase": "forward",
    "cause": "eps-underflow",
    "also_causes": ("log-of-zero",),
    "symptom": "loss-inf",
    "first_bad_step": 2,
    "n_steps": 5,
    "fix": "use binary_cross_entropy_with_logits",
}


class Disc(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(6, 24), nn.LeakyReLU(0.2), nn.Linear(24, 1))

    def forward(self, x):
        return self.net(x).squeeze(-1)


EPS = 1e-9


def fake_loss(p):
    rest = 1 + EPS - p
    return -torch.log(rest).mean()  # ORIGIN


def build(fixed: bool = False):
    torch.manual_seed(234)
    net = Disc()
    opt = torch.optim.Adam(net.parameters(), lr=1e-3)
    gen = torch.Generator().manual_seed(734)

    def step(i):
        opt.zero_grad()
        real, fake = torch.randn(2, 10, 6, generator=gen)
        if i == 2:
            fake[4] = 400.0 * net.net[0].weight.detach().t() @ net.net[2].weight.detach().squeeze(0)
        z = net(fake)
        real_loss = F.softplus(-net(real)).mean()
        loss = real_loss + (F.softplus(z).mean() if fixed else fake_loss(torch.sigmoid(z)))
        loss.backward()
        opt.step()
        return loss

    return net, step
