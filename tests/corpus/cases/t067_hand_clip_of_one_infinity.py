"""Gradient clipping by hand: one overflowing gradient makes the total norm infinite, and the factor 0 turns it into NaN."""

import torch
from torch import nn

META = {
    "origin_op": "sqrt",
    "phase": "backward",
    "cause": "sqrt-at-zero",
    "also_causes": ("clip-nonfinite-norm",),
    "symptom": "grad-nan",
    "first_bad_step": 2,
    "n_steps": 5,
    "fix": "epsilon under the root of the roughness term",
}


class Flow(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Conv2d(2, 8, 3, padding=1), nn.Tanh(), nn.Conv2d(8, 2, 3, padding=1))

    def forward(self, pair):
        return self.net(pair)


def clip_by_hand(params, limit):
    total = torch.stack([p.grad.norm() for p in params]).norm()
    factor = torch.clamp(limit / (total + 1e-6), max=1.0)
    for p in params:
        p.grad.mul_(factor)


def build(fixed: bool = False):
    torch.manual_seed(204)
    net = Flow()
    opt = torch.optim.SGD(net.parameters(), lr=1e-2)
    gen = torch.Generator().manual_seed(704)

    def step(i):
        pair = torch.randn(2, 2, 8, 8, generator=gen)
        if i == 2:
            net.net[2].weight.data.zero_()
        flow = net(pair)
        opt.zero_grad()
        dx = flow[..., 1:, 1:] - flow[..., 1:, :-1]
        dy = flow[..., 1:, 1:] - flow[..., :-1, 1:]
        rough = (dx**2 + dy**2 + (1e-6 if fixed else 0.0)).sqrt().mean()  # ORIGIN
        loss = (flow - pair).abs().mean() + 0.1 * rough
        loss.backward()
        clip_by_hand(list(net.parameters()), 1.0)
        opt.step()
        return loss

    return net, step
