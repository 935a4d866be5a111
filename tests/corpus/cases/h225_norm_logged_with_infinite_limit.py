"""clip_grad_norm_ with max_norm=inf, an idiom to read the norm: the coefficient is infinite and clamped to one."""

import torch
from torch import nn

META = {
    "healthy": True,
    "n_steps": 6,
    "why": "the infinite coefficient is clamped before it meets a gradient",
}


def build(fixed: bool = False):
    torch.manual_seed(825)
    net = nn.GRU(4, 8, batch_first=True)
    head = nn.Linear(8, 2)
    model = nn.ModuleList([net, head])
    opt = torch.optim.Adam(model.parameters(), lr=1e-3)
    gen = torch.Generator().manual_seed(925)
    log = []

    def step(i):
        x = torch.randn(8, 7, 4, generator=gen)
        y = (x[:, -1, 0] > 0).long()
        opt.zero_grad()
        loss = nn.functional.cross_entropy(head(net(x)[0][:, -1]), y)
        loss.backward()
        log.append(float(nn.utils.clip_grad_norm_(model.parameters(), float("inf"))))
        opt.step()
        return loss

    return model, step
