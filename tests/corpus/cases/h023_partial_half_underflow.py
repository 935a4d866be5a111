"""Mixed precision with a sensible fixed scale: a few tail gradients flush to zero in float16, each parameter keeps most of its own."""

import torch
from torch import nn

META = {"healthy": True, "n_steps": 6, "why": "losing a handful of the smallest gradient elements costs nothing"}


def build(fixed: bool = False):
    torch.manual_seed(23)
    net = nn.Sequential(nn.Linear(8, 32), nn.Tanh(), nn.Linear(32, 32), nn.Tanh(), nn.Linear(32, 4))
    opt = torch.optim.Adam(net.parameters(), lr=1e-3)
    scaler = torch.amp.GradScaler("cpu", init_scale=256.0)
    gen = torch.Generator().manual_seed(323)

    def step(i):
        x = torch.randn(16, 8, generator=gen) * torch.logspace(0, -4, 8)
        y = torch.randint(0, 4, (16,), generator=gen)
        opt.zero_grad()
        with torch.autocast("cpu", dtype=torch.float16):
            logits = net(x)
        loss = nn.functional.cross_entropy(logits.float(), y)
        scaler.scale(loss).backward()
        scaler.step(opt)
        scaler.update()
        return loss

    return net, step
