"""A learning-rate range test doubles the rate each step and never looks at the loss."""

import torch
from torch import nn

META = {
    "origin_op": "add_",
    "phase": "optimizer",
    "cause": "learning-rate",
    "also_causes": ("exploding-gradient",),
    "symptom": "loss-inf",
    "first_bad_step": 21,
    "n_steps": 30,
    "oracle": "drift",
    "fix": "stop when the loss is four times its best",
}


def build(fixed: bool = False):
    torch.manual_seed(637)
    net = nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 1))
    opt = torch.optim.SGD(net.parameters(), lr=1e-5)
    schedule = torch.optim.lr_scheduler.ExponentialLR(opt, gamma=1.1 if fixed else 2.0)
    gen = torch.Generator().manual_seed(737)

    def step(i):
        x = torch.randn(32, 8, generator=gen)
        y = torch.sin(x).sum(1, keepdim=True)
        opt.zero_grad()
        out = net(x)  # FIRST
        loss = nn.functional.mse_loss(out, y)  # FIRST
        loss.backward()
        opt.step()  # ORIGIN
        schedule.step()
        return loss

    return net, step
