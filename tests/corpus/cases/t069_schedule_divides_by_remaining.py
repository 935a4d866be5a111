"""A trapezoidal schedule divides by the number of steps that remain; at the last one numpy gives inf and the update is infinite."""

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

META = {
    "origin_op": "_foreach_add_",
    "also_ops": ("add_",),
    "phase": "optimizer",
    "cause": "learning-rate",
    "symptom": "param-inf",
    "first_bad_step": 4,
    "n_steps": 6,
    "fix": "bound the denominator by one",
}


def rate(step, total, floor):
    remaining = np.float64(max(total - step, floor))
    with np.errstate(divide="ignore"):
        return 1e-2 / remaining


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(5, 16), nn.ReLU(), nn.Linear(16, 1))

    def forward(self, x):
        return self.body(x).squeeze(-1)


def build(fixed: bool = False):
    torch.manual_seed(206)
    net = Net()
    opt = torch.optim.SGD(net.parameters(), lr=1e-2)
    gen = torch.Generator().manual_seed(706)

    def step(i):
        x = torch.randn(16, 5, generator=gen)
        loss = F.mse_loss(net(x), x[:, 0])
        opt.zero_grad()
        loss.backward()
        for group in opt.param_groups:
            group["lr"] = float(rate(i, 4, 1 if fixed else 0))
        opt.step()  # ORIGIN
        return loss

    return net, step
