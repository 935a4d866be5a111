"""Activations go through float8_e5m2 with a static scale that was calibrated on other data: an outlier becomes
infinite.
"""

import torch
from torch import nn
from torch.nn import functional as F

META = {
    "origin_op": "_to_copy",
    "also_ops": ("to", "copy_"),
    "phase": "forward",
    "cause": "dtype-overflow",
    "symptom": "grad-nan",
    "first_bad_step": 2,
    "n_steps": 4,
    "fix": "a dynamic scale",
}


class Float8Linear(nn.Linear):
    dynamic = False
    scale = 2.0**13

    def forward(self, x):
        s = 4e4 / x.detach().abs().amax().clamp(min=1e-6) if self.dynamic else torch.tensor(self.scale)
        low = (x * s).to(torch.float8_e5m2)  # ORIGIN
        x = x + (low.to(x.dtype) / s - x).detach()
        return F.linear(x, self.weight, self.bias)


def build(fixed: bool = False):
    torch.manual_seed(1019)
    net = nn.Sequential(Float8Linear(6, 10), nn.Tanh(), Float8Linear(10, 2))
    opt = torch.optim.Adam(net.parameters(), lr=1e-3)
    gen = torch.Generator().manual_seed(1024)
    for layer in (net[0], net[2]):
        layer.dynamic = fixed

    def step(i):
        opt.zero_grad()
        x = torch.randn(8, 6, generator=gen)
        if i == 2:
            x[4, 1] = 11.0
        loss = F.cross_entropy(net(x), torch.arange(8) % 2)
        loss.backward()
        opt.step()
        return loss

    return net, step
