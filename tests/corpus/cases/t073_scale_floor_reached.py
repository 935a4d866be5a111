"""A dynamic loss scaler never finds a scale: one parameter's gradient is NaN at every step, because a length is exactly zero."""

import torch
from torch import nn

META = {
    "origin_op": "sqrt",
    "phase": "backward",
    "cause": "sqrt-at-zero",
    "symptom": "grad-nan",
    "first_bad_step": 0,
    "n_steps": 10,
    "fix": "1e-8 under the root",
}


class Mesh(nn.Module):
    def __init__(self):
        super().__init__()
        self.offset = nn.Parameter(torch.zeros(12, 3))
        self.net = nn.Sequential(nn.Linear(3, 16), nn.ReLU(), nn.Linear(16, 1))

    def forward(self, v):
        return v + self.offset


def build(fixed: bool = False):
    torch.manual_seed(210)
    net = Mesh()
    opt = torch.optim.SGD(net.parameters(), lr=1e-3)
    gen = torch.Generator().manual_seed(710)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**8)
    base = torch.randn(12, 3, generator=gen)
    base[5] = base[4]
    edges = torch.stack([torch.arange(11), torch.arange(1, 12)])

    def step(i):
        v = net(base)
        d = v[edges[0]] - v[edges[1]]
        length = (d.square().sum(-1) + (1e-8 if fixed else 0.0)).sqrt()  # ORIGIN
        fit = net.net(v).square().mean()
        loss = fit + 0.1 * (length - 0.5).square().mean()
        opt.zero_grad()
        scaler.scale(loss).backward()
        scaler.step(opt)
        scaler.update()
        return loss

    return net, step
