"""A warm-up in pure bfloat16: the first twelve steps are too small to move the gains of a norm, the later ones are not."""

import torch
from torch import nn

META = {
    "healthy": True,
    "n_steps": 24,
    "why": "the rate is still rising; once it is up everything moves",
}


def build(fixed: bool = False):
    torch.manual_seed(846)
    net = nn.Sequential(nn.Linear(8, 24), nn.LayerNorm(24), nn.GELU(), nn.Linear(24, 3)).bfloat16()
    opt = torch.optim.Adam(net.parameters(), lr=8e-3)
    warm = torch.optim.lr_scheduler.LambdaLR(opt, lambda k: min(1.0, (k + 1) / 20))
    gen = torch.Generator().manual_seed(946)

    def step(i):
        x = torch.randn(32, 8, generator=gen)
        opt.zero_grad()
        loss = nn.functional.cross_entropy(net(x.bfloat16()).float(), x[:, :3].argmax(1))
        loss.backward()
        opt.step()
        warm.step()
        return loss

    return net, step
