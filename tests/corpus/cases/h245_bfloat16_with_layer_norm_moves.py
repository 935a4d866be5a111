"""Pure bfloat16 with a norm layer and Adam at 5e-3: the steps are wider than half the distance between numbers around one."""

import torch
from torch import nn

META = {
    "healthy": True,
    "n_steps": 14,
    "why": "every parameter moves",
}


def build(fixed: bool = False):
    torch.manual_seed(845)
    net = nn.Sequential(nn.Linear(8, 24), nn.LayerNorm(24), nn.GELU(), nn.Linear(24, 3)).bfloat16()
    opt = torch.optim.AdamW(net.parameters(), lr=5e-3, weight_decay=0.0)
    gen = torch.Generator().manual_seed(945)

    def step(i):
        x = torch.randn(32, 8, generator=gen)
        opt.zero_grad()
        loss = nn.functional.cross_entropy(net(x.bfloat16()).float(), x[:, :3].argmax(1))
        loss.backward()
        opt.step()
        return loss

    return net, step
