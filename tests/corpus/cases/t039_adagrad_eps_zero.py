"""Adagrad with eps=0 and no initial accumulator: the first step of a feature that has not been seen yet is 0/0."""

import torch
from torch import nn

META = {
    "origin_op": "addcdiv_",
    "phase": "optimizer",
    "cause": "optimizer-arithmetic",
    "also_causes": ("div-by-zero", "optimizer-eps-underflow"),
    "symptom": "param-nan",
    "first_bad_step": 0,
    "n_steps": 4,
    "fix": "eps=1e-10, or initial_accumulator_value=0.1",
}


class ClickModel(nn.Module):
    def __init__(self, features=60):
        super().__init__()
        self.wide = nn.Linear(features, 1)
        self.deep = nn.Sequential(nn.Linear(features, 16), nn.ELU(), nn.Linear(16, 1))

    def forward(self, x):
        return (self.wide(x) + self.deep(x)).squeeze(-1)


def build(fixed: bool = False):
    torch.manual_seed(439)
    net = ClickModel()
    opt = torch.optim.Adagrad(net.parameters(), lr=0.05, eps=1e-10 if fixed else 0.0)
    gen = torch.Generator().manual_seed(539)

    def step(i):
        active = torch.randint(0, 60, (10, 3), generator=gen)
        x = torch.zeros(10, 60).scatter_(1, active, 1.0)
        clicked = (active.sum(1) % 2).float()
        opt.zero_grad()
        loss = nn.functional.binary_cross_entropy_with_logits(net(x), clicked)
        loss.backward()
        opt.step()  # ORIGIN
        return loss

    return net, step
