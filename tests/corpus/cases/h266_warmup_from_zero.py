"""Linear warm-up that starts at a learning rate of exactly zero (the first step moves nothing), then cosine to zero."""
import math

import torch
from torch import nn

META = {
    "healthy": True,
    "n_steps": 12,
    "why": "the rate of the first and of the last step is zero",
}


def build(fixed: bool = False):
    torch.manual_seed(1272)
    net = nn.Sequential(nn.Linear(10, 24), nn.LayerNorm(24), nn.GELU(), nn.Linear(24, 3))
    opt = torch.optim.AdamW(net.parameters(), lr=2e-3, weight_decay=0.01)

    def factor(k, warm=3, total=12):
        return k / warm if k < warm else 0.5 * (1 + math.cos(math.pi * (k - warm) / (total - 1 - warm)))

    sched = torch.optim.lr_scheduler.LambdaLR(opt, factor)
    gen = torch.Generator().manual_seed(1273)

    def step(i):
        x = torch.randn(16, 10, generator=gen)
        y = x[:, :3].argmax(1)
        opt.zero_grad()
        with torch.autocast("cpu", dtype=torch.bfloat16):
            out = net(x)
        loss = nn.functional.cross_entropy(out.float(), y, label_smoothing=0.1)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        opt.step()
        sched.step()
        return loss

    return net, step
