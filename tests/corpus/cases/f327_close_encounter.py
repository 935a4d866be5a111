"""Gravity by dx / r^3: two bodies that nearly touch have r^3 below the smallest float32."""

import torch
from torch import nn

META = {
    "origin_op": "div",
    "phase": "forward",
    "cause": "div-by-zero",
    "symptom": "loss-nan",
    "first_bad_step": 4,
    "n_steps": 6,
    "fix": "soften the distance",
    "also_causes": ["dtype-underflow", "div-by-tiny"],
}


class Gravity(nn.Module):
    def __init__(self, soft):
        super().__init__()
        self.soft = soft
        self.log_mass = nn.Parameter(torch.zeros(4))

    def forward(self, x):
        d = x[:, None] - x[:, :, None]
        r2 = d.pow(2).sum(-1) + self.soft
        r2 = r2.masked_fill(torch.eye(4, dtype=torch.bool), 1.0)
        pull = d / (r2 * r2.sqrt()).unsqueeze(-1)  # ORIGIN
        return (self.log_mass.exp()[None, None, :, None] * pull).sum(2)


def build(fixed: bool = False):
    torch.manual_seed(1041)
    net = Gravity(1e-4 if fixed else 0.0)
    opt = torch.optim.Adam(net.parameters(), lr=1e-3)
    gen = torch.Generator().manual_seed(1042)

    def step(i):
        x = torch.randn(6, 4, 2, generator=gen)
        if i == 4:
            x[1, 0] = torch.tensor([1e-16, 0.0])
            x[1, 2] = torch.tensor([2e-16, 0.0])
        target = torch.randn(6, 4, 2, generator=gen)
        loss = nn.functional.huber_loss(net(x), target)
        opt.zero_grad()
        loss.backward()
        opt.step()
        return loss

    return net, step
