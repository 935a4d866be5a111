"""A cosine schedule that reaches a rate of exactly zero, and runs on past T_max: the rate rises again and training goes on."""

import torch
from torch import nn

META = {
    "healthy": True,
    "n_steps": 12,
    "why": "one step with a rate of zero is what the schedule says",
}


def build(fixed: bool = False):
    torch.manual_seed(827)
    net = nn.Sequential(nn.Linear(6, 12), nn.ReLU(), nn.Linear(12, 1))
    opt = torch.optim.AdamW(net.parameters(), lr=1e-2)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(opt, T_max=6, eta_min=0.0)
    gen = torch.Generator().manual_seed(927)

    def step(i):
        x = torch.randn(16, 6, generator=gen)
        opt.zero_grad()
        loss = nn.functional.mse_loss(net(x), x.sum(1, keepdim=True))
        loss.backward()
        opt.step()
        schedule.step()
        return loss

    return net, step
