"""A seasonal model wraps time by a learned period; a ReLU lets one period reach zero, and the remainder by zero is NaN."""

import torch
from torch import nn

META = {
    "origin_op": "remainder",
    "phase": "forward",
    "cause": "div-by-zero",
    "symptom": "loss-nan",
    "first_bad_step": 4,
    "n_steps": 7,
    "fix": "parametrise the period by softplus plus a floor",
}


class Seasonal(nn.Module):
    def __init__(self, floor):
        super().__init__()
        self.floor = floor
        self.period = nn.Parameter(torch.tensor([7.0, 1.0, 0.19]))
        self.body = nn.Sequential(nn.Linear(3, 24), nn.Tanh(), nn.Linear(24, 24), nn.Tanh(), nn.Linear(24, 1))

    def forward(self, t):
        period = torch.relu(self.period) + self.floor
        phase = torch.remainder(t.unsqueeze(-1), period)  # ORIGIN
        return self.body(phase - 0.5 * period).squeeze(-1)


def build(fixed: bool = False):
    torch.manual_seed(10)
    net = Seasonal(0.05 if fixed else 0.0)
    opt = torch.optim.Adam([{"params": net.body.parameters()}, {"params": [net.period], "lr": 0.05}], lr=2e-3)
    gen = torch.Generator().manual_seed(110)

    def step(i):
        t = 30 * torch.rand(40, generator=gen)
        y = torch.sin(2 * torch.pi * t / 7) + 0.1 * torch.randn(40, generator=gen)
        opt.zero_grad()
        loss = nn.functional.mse_loss(net(t), y) + 0.05 * torch.relu(net.period).sum()
        loss.backward()
        net.period.grad.clamp_(0.01, 1.0)  # periods may only shrink in this stage
        opt.step()
        return loss

    return net, step
