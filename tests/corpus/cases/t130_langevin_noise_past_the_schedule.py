"""Langevin dynamics whose step size falls linearly; the run goes on past the schedule and the noise takes the root of a negative number."""

import torch
from torch import nn

META = {
    "origin_op": "sqrt",
    "phase": "optimizer",
    "also_phase": "forward",
    "cause": "sqrt-of-negative",
    "also_causes": ("optimizer-arithmetic", "learning-rate"),
    "symptom": "param-nan",
    "first_bad_step": 6,
    "n_steps": 9,
    "fix": "clamp the step size",
}


class Langevin(torch.optim.Optimizer):
    def __init__(self, params, rates):
        super().__init__(params, {"rates": rates, "count": 0})

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            rate = group["rates"][group["count"]]
            group["count"] += 1
            scale = torch.sqrt(2 * rate)  # ORIGIN
            for p in group["params"]:
                p.sub_(rate * p.grad).add_(0.01 * scale * torch.randn_like(p))


def build(fixed: bool = False):
    torch.manual_seed(630)
    net = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))
    rates = 0.05 * (1 - (torch.arange(12) + 0.5) / 6)
    opt = Langevin(net.parameters(), rates.clamp(min=1e-4) if fixed else rates)
    gen = torch.Generator().manual_seed(730)

    def step(i):
        x = torch.randn(16, 4, generator=gen)
        opt.zero_grad()
        loss = nn.functional.mse_loss(net(x), x.prod(1, keepdim=True))
        loss.backward()
        opt.step()
        return loss

    return net, step
