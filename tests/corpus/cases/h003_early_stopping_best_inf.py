"""Early stopping keeps best = inf as a tensor and a table of best scores per fold, compared and replaced each step."""

import torch
from torch import nn

META = {"healthy": True, "n_steps": 6, "why": "the infinities are only compared with, never computed with"}


def build(fixed: bool = False):
    torch.manual_seed(3)
    net = nn.Sequential(nn.Linear(5, 24), nn.SiLU(), nn.Linear(24, 24), nn.SiLU(), nn.Linear(24, 1))
    opt = torch.optim.Adam(net.parameters(), lr=2e-3)
    gen = torch.Generator().manual_seed(303)
    best = torch.tensor(float("inf"))
    per_fold = torch.full((3,), torch.inf)
    saved = {}

    def step(i):
        nonlocal best, saved
        x = torch.randn(20, 5, generator=gen)
        y = x[:, :1].sin()
        opt.zero_grad()
        loss = nn.functional.mse_loss(net(x), y)
        loss.backward()
        opt.step()
        with torch.no_grad():
            per_fold[i % 3] = torch.minimum(per_fold[i % 3], loss)
        if loss.detach() < best:
            best = loss.detach().clone()
            saved = {k: v.clone() for k, v in net.state_dict().items()}
        return loss

    return net, step
