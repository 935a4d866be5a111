"""A linear autoencoder with learning rate 3: each step overshoots further than the last, until the squared error overflows."""

import torch
from torch import nn

META = {
    "origin_op": "add_",
    "phase": "optimizer",
    "cause": "learning-rate",
    "also_causes": ("exploding-gradient",),
    "symptom": "loss-inf",
    "first_bad_step": 3,
    "n_steps": 16,
    "oracle": "drift",
    "fix": "lr=0.05",
}


def build(fixed: bool = False):
    torch.manual_seed(442)
    net = nn.Sequential(nn.Linear(12, 4), nn.Linear(4, 12))
    opt = torch.optim.SGD(net.parameters(), lr=0.05 if fixed else 3.0)
    gen = torch.Generator().manual_seed(542)
    mixing = torch.randn(4, 12, generator=gen)

    def step(i):
        x = torch.randn(24, 4, generator=gen) @ mixing
        opt.zero_grad()
        code = net[0](x)  # FIRST
        loss = nn.functional.mse_loss(net[1](code), x)  # FIRST
        loss.backward()
        opt.step()  # ORIGIN
        return loss

    return net, step
