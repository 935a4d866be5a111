"""The generator minimises log(1 - D(G(z))) as in the textbook; a discriminator that is fooled outright gives log of zero."""

import torch
from torch import nn

META = {
    "origin_op": "log",
    "phase": "forward",
    "cause": "log-of-zero",
    "symptom": "loss-inf",
    "first_bad_step": 3,
    "n_steps": 6,
    "fix": "binary_cross_entropy_with_logits",
}


class Gan(nn.Module):
    def __init__(self):
        super().__init__()
        self.gen = nn.Linear(4, 6)
        self.dis = nn.Linear(6, 1)


def build(fixed: bool = False):
    torch.manual_seed(638)
    net = Gan()
    opt_g = torch.optim.Adam(net.gen.parameters(), lr=1e-3, betas=(0.5, 0.999))
    opt_d = torch.optim.Adam(net.dis.parameters(), lr=1e-3, betas=(0.5, 0.999))
    gen = torch.Generator().manual_seed(738)

    def step(i):
        z, real = torch.randn(16, 4, generator=gen), torch.randn(16, 6, generator=gen)
        if i == 3:
            z = z * 300.0
        opt_d.zero_grad()
        fake = net.gen(z)
        d_loss = nn.functional.softplus(-net.dis(real)).mean() + nn.functional.softplus(net.dis(fake.detach())).mean()
        d_loss.backward()
        opt_d.step()
        opt_g.zero_grad()
        score = net.dis(fake)
        if fixed:
            g_loss = -nn.functional.softplus(score).mean()
        else:
            g_loss = torch.log(1.0 - torch.sigmoid(score)).mean()  # ORIGIN
        g_loss.backward()
        opt_g.step()
        return g_loss

    return net, step
