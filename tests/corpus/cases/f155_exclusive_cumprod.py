"""Volume rendering makes the transmittance exclusive by dividing the cumulative product by its last factor; an opaque sample makes it 0/0."""

import torch
from torch import nn
from torch.nn import functional as F

META = {
    "origin_op": "div",
    "phase": "forward",
    "cause": "div-by-zero",
    "symptom": "loss-nan",
    "first_bad_step": 2,
    "n_steps": 5,
    "fix": "shift the cumulative product by one sample",
}


class Field(nn.Module):
    def __init__(self, shift):
        super().__init__()
        self.shift = shift
        self.net = nn.Sequential(nn.Linear(3, 24), nn.ReLU(), nn.Linear(24, 4))

    def forward(self, pts, step):
        out = self.net(pts)
        sigma, rgb = F.softplus(out[..., 0]), out[..., 1:].sigmoid()
        clear = torch.exp(-sigma * step)
        if self.shift:
            trans = torch.cumprod(torch.cat([torch.ones_like(clear[:, :1]), clear[:, :-1]], 1), 1)
        else:
            trans = torch.cumprod(clear, 1) / clear  # ORIGIN
        return ((trans * (1 - clear))[..., None] * rgb).sum(1)


def build(fixed: bool = False):
    torch.manual_seed(253)
    net = Field(fixed)
    opt = torch.optim.Adam(net.parameters(), lr=1e-3)
    gen = torch.Generator().manual_seed(753)

    def step(i):
        opt.zero_grad()
        pts = torch.randn(6, 10, 3, generator=gen)
        step = torch.full((6, 10), 0.1)
        if i == 2:
            step[:, -1] = 1e10
        loss = F.mse_loss(net(pts, step), torch.rand(6, 3, generator=gen))
        loss.backward()
        opt.step()
        return loss

    return net, step
