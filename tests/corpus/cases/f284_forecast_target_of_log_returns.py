"""The target is a log return computed from prices in the step; a halted stock has a price of zero."""

import torch
from torch import nn
from torch.nn import functional as F

META = {
    "origin_op": "log",
    "phase": "forward",
    "also_phase": "data",
    "cause": "log-of-zero",
    "also_causes": ("nan-in-target",),
    "symptom": "loss-inf",
    "first_bad_step": 2,
    "n_steps": 4,
    "fix": "drop halted stocks",
}


class Net(nn.Module):
    def __init__(self, fixed):
        super().__init__()
        self.rnn, self.out = nn.GRU(1, 8, batch_first=True), nn.Linear(8, 1)

    def forward(self, x):
        return self.out(self.rnn(x[..., None])[0][:, -1]).squeeze(1)


def build(fixed: bool = False):
    torch.manual_seed(2691)
    net = Net(fixed)
    opt = torch.optim.Adam(net.parameters(), lr=1e-3)
    gen = torch.Generator().manual_seed(2696)

    def step(i):
        opt.zero_grad()
        price = torch.rand(6, 8, generator=gen) + 1
        if i == 2:
            price[4, -1] = 0.0
        target = torch.log(price[:, -1].clamp(min=1e-3 if fixed else 0.0) / price[:, -2])  # ORIGIN
        loss = F.mse_loss(net(price[:, :-1]), target)
        loss.backward()
        opt.step()
        return loss

    return net, step
