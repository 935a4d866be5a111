"""A warm-up that starts at a learning rate of exactly zero: the first step moves nothing, and is meant not to."""

import torch
from torch import nn

META = {
    "healthy": True,
    "n_steps": 12,
    "why": "an update of zero from a rate of zero is the schedule's wish, no absorbed update",
}


def build(fixed: bool = False):
    torch.manual_seed(603)
    net = nn.Sequential(nn.Linear(8, 32), nn.LayerNorm(32), nn.GELU(), nn.Linear(32, 3))
    opt = torch.optim.AdamW(net.parameters(), lr=3e-3)
    plan = torch.optim.lr_scheduler.LambdaLR(opt, lambda k: min(1.0, k / 6))
    gen = torch.Generator().manual_seed(703)

    def step(i):
        x = torch.randn(16, 8, generator=gen)
        opt.zero_grad()
        loss = nn.functional.cross_entropy(net(x), x[:, :3].argmax(-1))
        loss.backward()
        opt.step()
        plan.step()
        return loss

    return net, step
