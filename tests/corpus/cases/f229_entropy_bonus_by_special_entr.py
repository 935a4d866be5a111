"""An entropy bonus by torch.special.entr of probabilities: exact zeros are fine forward, their slope is infinite."""

import torch
from torch import nn

META = {
    "origin_op": "special_entr",
    "also_ops": ("entr", "log"),
    "phase": "backward",
    "cause": "log-of-zero",
    "symptom": "grad-nan",
    "first_bad_step": 2,
    "n_steps": 4,
    "fix": "add an epsilon to the probabilities",
}


class Gate(nn.Module):
    def __init__(self, floor):
        super().__init__()
        self.router = nn.Linear(4, 6)
        self.experts = nn.ModuleList(nn.Linear(4, 1) for _ in range(6))
        self.floor = floor

    def forward(self, x):
        p = torch.softmax(self.router(x), dim=1)
        bonus = torch.special.entr(p + self.floor).sum(1)  # ORIGIN
        return (p * torch.cat([e(x) for e in self.experts], 1)).sum(1), bonus


def build(fixed: bool = False):
    torch.manual_seed(1061)
    net = Gate(1e-8 if fixed else 0.0)
    opt = torch.optim.Adam(net.parameters(), lr=1e-3)
    gen = torch.Generator().manual_seed(1066)

    def step(i):
        opt.zero_grad()
        x = torch.randn(8, 4, generator=gen)
        if i == 2:
            x[6] *= 500
        y, bonus = net(x)
        loss = (y - torch.tanh(x[:, 0])).square().mean() * 1e-3 - 0.01 * bonus.mean()
        loss.backward()
        opt.step()
        return loss

    return net, step
