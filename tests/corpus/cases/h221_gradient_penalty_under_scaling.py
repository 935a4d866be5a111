"""A gradient penalty under mixed precision, by the book: gradients of the scaled loss, unscaled by hand, then squared."""

import torch
from torch import nn

META = {
    "healthy": True,
    "n_steps": 6,
    "why": "the penalty is taken of unscaled gradients",
}


def build(fixed: bool = False):
    torch.manual_seed(821)
    net = nn.Sequential(nn.Linear(5, 16), nn.Tanh(), nn.Linear(16, 2))
    opt = torch.optim.SGD(net.parameters(), lr=0.05)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**8)
    gen = torch.Generator().manual_seed(921)

    def step(i):
        x = torch.randn(16, 5, generator=gen)
        y = (x[:, 0] > 0).long()
        opt.zero_grad()
        with torch.autocast("cpu", dtype=torch.float16):
            loss = nn.functional.cross_entropy(net(x).float(), y)
        scaled = torch.autograd.grad(scaler.scale(loss), net.parameters(), create_graph=True)
        grads = [g / scaler.get_scale() for g in scaled]
        penalty = torch.sqrt(sum(g.square().sum() for g in grads) + 1e-12)
        loss = loss + 0.1 * penalty
        scaler.scale(loss).backward()
        scaler.step(opt)
        scaler.update()
        return loss

    return net, step
