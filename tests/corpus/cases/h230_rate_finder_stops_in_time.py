"""A learning-rate range test: the rate doubles until the loss is fifty times its best, then the weights are restored and training begins."""

import copy

import torch
from torch import nn

META = {
    "healthy": True,
    "n_steps": 36,
    "why": "the divergence is looked for and ended before anything overflows",
}


def build(fixed: bool = False):
    torch.manual_seed(830)
    net = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 1))
    saved = copy.deepcopy(net.state_dict())
    opt = torch.optim.SGD(net.parameters(), lr=1e-5)
    gen = torch.Generator().manual_seed(930)
    best, searching = float("inf"), True

    def step(i):
        nonlocal best, searching
        x = torch.randn(32, 8, generator=gen)
        opt.zero_grad()
        loss = nn.functional.mse_loss(net(x), x.sum(1, keepdim=True))
        loss.backward()
        opt.step()
        if searching:
            best = min(best, float(loss.detach()))
            opt.param_groups[0]["lr"] *= 2
            if loss > 50 * best:
                net.load_state_dict(saved)
                opt.param_groups[0]["lr"], searching = 0.01, False
        return loss

    return net, step
