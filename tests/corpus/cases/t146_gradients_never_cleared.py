"""zero_grad was forgotten: every step takes the sum of all gradients so far, and the weights swing wider and wider."""

import torch
from torch import nn

META = {
    "origin_op": "add_",
    "phase": "optimizer",
    "cause": "learning-rate",
    "also_causes": ("exploding-gradient",),
    "symptom": "loss-inf",
    "first_bad_step": 17,
    "n_steps": 24,
    "oracle": "drift",
    "fix": "opt.zero_grad() in each step",
}


def build(fixed: bool = False):
    torch.manual_seed(646)
    net = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 1))
    opt = torch.optim.SGD(net.parameters(), lr=0.1)
    gen = torch.Generator().manual_seed(746)

    def step(i):
        x = torch.randn(32, 8, generator=gen)
        y = x.square().sum(1, keepdim=True)
        if fixed:
            opt.zero_grad()
        out = net(x)  # FIRST
        loss = nn.functional.mse_loss(out, y)  # FIRST
        loss.backward()
        opt.step()  # ORIGIN
        return loss

    return net, step
