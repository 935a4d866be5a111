"""A critic clipped to a box and trained five times as often as its generator, which is stepped only now and then."""

import torch
from torch import nn

META = {
    "healthy": True,
    "n_steps": 15,
    "why": "gradients that the generator gets from the critic's loss are cleared before its own",
}


def build(fixed: bool = False):
    torch.manual_seed(841)
    net = nn.ModuleDict(
        {"gen": nn.Linear(3, 5), "critic": nn.Sequential(nn.Linear(5, 16), nn.ReLU(), nn.Linear(16, 1))}
    )
    opt_g = torch.optim.RMSprop(net["gen"].parameters(), lr=1e-3)
    opt_c = torch.optim.RMSprop(net["critic"].parameters(), lr=1e-3)
    gen = torch.Generator().manual_seed(941)

    def step(i):
        real, z = torch.randn(32, 5, generator=gen) + 1, torch.randn(32, 3, generator=gen)
        opt_c.zero_grad()
        loss = net["critic"](net["gen"](z)).mean() - net["critic"](real).mean()
        loss.backward()
        opt_c.step()
        with torch.no_grad():
            for p in net["critic"].parameters():
                p.clamp_(-0.05, 0.05)
        if i % 5 == 4:
            opt_g.zero_grad()
            (-net["critic"](net["gen"](z)).mean()).backward()
            opt_g.step()
        return loss

    return net, step
