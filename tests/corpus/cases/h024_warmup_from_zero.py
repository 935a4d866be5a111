"""Linear warmup whose first learning rate is exactly zero: step 0 moves nothing."""

import torch
from torch import nn

META = {"healthy": True, "n_steps": 6, "why": "an update of zero is what a learning rate of zero asks for"}


def build(fixed: bool = False):
    torch.manual_seed(24)
    net = nn.Sequential(nn.Linear(6, 24), nn.GELU(), nn.LayerNorm(24), nn.Linear(24, 24), nn.GELU(), nn.Linear(24, 2))
    opt = torch.optim.AdamW(net.parameters(), lr=3e-3)
    warmup = torch.optim.lr_scheduler.LambdaLR(opt, lambda k: min(1.0, k / 4))
    gen = torch.Generator().manual_seed(324)

    def step(i):
        x = torch.randn(16, 6, generator=gen)
        y = (x[:, 1] > x[:, 0]).long()
        opt.zero_grad()
        loss = nn.functional.cross_entropy(net(x), y)
        loss.backward()
        opt.step()
        warmup.step()
        return loss

    return net, step
