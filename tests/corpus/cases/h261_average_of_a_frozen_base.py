"""A moving average in bfloat16 over a frozen base and a trained head: what is frozen stands still, and so does its average."""

import torch
from torch import nn

META = {
    "healthy": True,
    "n_steps": 8,
    "why": "the average of a frozen weight is that weight",
}


def build(fixed: bool = False):
    torch.manual_seed(1)
    net = nn.Sequential(nn.Linear(8, 24), nn.ReLU(), nn.Linear(24, 3)).bfloat16().requires_grad_(False)
    head = nn.Linear(3, 3)
    whole = nn.ModuleList([net, head])
    shadow = {n: p.detach().clone() for n, p in whole.named_parameters()}
    opt = torch.optim.SGD(head.parameters(), lr=3e-1)
    gen = torch.Generator().manual_seed(2)

    def step(i):
        x = torch.randn(16, 8, generator=gen)
        opt.zero_grad()
        loss = nn.functional.cross_entropy(head(net(x.bfloat16()).float()), (x[:, 0] > 0).long())
        loss.backward()
        opt.step()
        with torch.no_grad():
            for n, p in whole.named_parameters():
                shadow[n].mul_(0.999).add_(p, alpha=0.001)
        return loss

    return whole, step
