"""Accuracy per class is NaN for a class that is not in the batch; it is logged with nanmean and never
differentiated.
"""

import torch
from torch import nn
from torch.nn import functional as F

META = {
    "healthy": True,
    "n_steps": 4,
    "why": "the NaN stays in a metric",
}


def per_class(pred, y, k):
    hot = F.one_hot(y, k).float()
    return (hot * (pred == y)[:, None]).sum(0) / hot.sum(0)


def build(fixed: bool = False):
    torch.manual_seed(1905)
    net = nn.Linear(4, 3)
    opt = torch.optim.Adam(net.parameters(), lr=1e-3)
    gen = torch.Generator().manual_seed(1910)
    log = []

    def step(i):
        opt.zero_grad()
        x, y = torch.randn(8, 4, generator=gen), torch.tensor([0, 1, 0, 1, 0, 1, 0, 1])
        out = net(x)
        loss = F.cross_entropy(out, y)
        log.append(per_class(out.argmax(1), y, 3).nanmean().item())
        loss.backward()
        opt.step()
        return loss

    return net, step
