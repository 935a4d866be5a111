"""An ELU written with where(): exp of the large positive branch is infinite, is not chosen, and returns as 0 * inf."""

import torch
from torch import nn

META = {
    "origin_op": "exp",
    "phase": "backward",
    "cause": "where-grad-trap",
    "also_causes": ("exp-overflow",),
    "symptom": "grad-nan",
    "first_bad_step": 4,
    "n_steps": 7,
    "fix": "exponentiate min(x, 0)",
}


class Elu(nn.Module):
    def __init__(self, safe):
        super().__init__()
        self.safe = safe

    def forward(self, x):
        arg = x.clamp_max(0.0) if self.safe else x
        tail = torch.exp(arg) - 1  # ORIGIN
        return torch.where(x > 0, x, tail)


def build(fixed: bool = False):
    torch.manual_seed(38)
    net = nn.Sequential(
        nn.Conv1d(2, 8, 3, padding=1),
        Elu(fixed),
        nn.Conv1d(8, 8, 3, padding=1),
        Elu(fixed),
        nn.Flatten(),
        nn.Linear(96, 3),
    )
    opt = torch.optim.SGD(net.parameters(), lr=1e-4)
    gen = torch.Generator().manual_seed(138)

    def step(i):
        x = torch.randn(6, 2, 12, generator=gen)
        if i == 4:
            x[3, 0, 4:7] = 400.0  # an electrode came loose
        y = torch.randint(0, 3, (6,), generator=gen)
        opt.zero_grad()
        loss = nn.functional.cross_entropy(net(x), y)
        loss.backward()
        opt.step()
        return loss

    return net, step
