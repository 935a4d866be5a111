"""Updates in hooks while the gradients arrive, normalised with a floor: a shut branch has a gradient of zero, and rests."""

import torch
from torch import nn

META = {
    "healthy": True,
    "n_steps": 6,
    "why": "zero over the floor is zero",
}


def build(fixed: bool = False):
    torch.manual_seed(840)
    net = nn.ModuleDict({"main": nn.Linear(6, 4), "side": nn.Linear(6, 4)})

    @torch.no_grad()
    def update(p):
        p.sub_(0.05 * p.grad / p.grad.norm().clamp(min=1e-8))
        p.grad = None

    for p in net.parameters():
        p.register_post_accumulate_grad_hook(update)
    gen = torch.Generator().manual_seed(940)

    def step(i):
        x = torch.randn(16, 6, generator=gen)
        out = net["main"](x) + (i % 2) * net["side"](x)
        loss = nn.functional.mse_loss(out, x[:, :4])
        loss.backward()
        return loss

    return net, step
