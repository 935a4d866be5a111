"""The first call pretrains an autoencoder in a loop of its own; later a focal exponent meets a probability of one."""

import torch
from torch import nn

META = {
    "origin_op": "pow",
    "phase": "backward",
    "cause": "pow-fraction-at-zero",
    "symptom": "grad-nan",
    "first_bad_step": 3,
    "n_steps": 6,
    "fix": "clamp 1 - p from below",
}


def build(fixed: bool = False):
    torch.manual_seed(710)
    enc, dec, head = nn.Linear(6, 4), nn.Linear(4, 6), nn.Linear(4, 1)
    net = nn.ModuleList([enc, dec, head])
    gen = torch.Generator().manual_seed(711)

    def pretrain():
        opt = torch.optim.Adam([*enc.parameters(), *dec.parameters()], lr=1e-2)
        for _ in range(6):
            x = torch.randn(16, 6, generator=gen)
            loss = nn.functional.mse_loss(dec(torch.tanh(enc(x))), x)
            opt.zero_grad()
            loss.backward()
            opt.step()

    opt = torch.optim.SGD([*enc.parameters(), *head.parameters()], lr=0.05)

    def focal(z, y):
        p = torch.sigmoid(torch.where(y > 0, z, -z))
        miss = 1 - p
        if fixed:
            miss = miss.clamp_min(1e-6)
        return (miss**0.5 * nn.functional.softplus(torch.where(y > 0, -z, z))).mean()  # ORIGIN

    def step(i):
        if i == 0:
            pretrain()
        x = torch.randn(12, 6, generator=gen)
        y = (x[:, 0] > 0).float()
        z = head(torch.tanh(enc(x))).squeeze(1)
        if i == 3:
            z = z + 40.0 * (2 * y - 1) * (torch.arange(12) == 5)  # a leaked label
        loss = focal(z, y)
        opt.zero_grad()
        loss.backward()
        opt.step()
        return loss

    return net, step
