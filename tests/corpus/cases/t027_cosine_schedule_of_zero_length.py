"""All steps are warm-up steps, so the cosine part of the schedule has length zero: its progress is 0/0 and the learning rate NaN."""

import numpy as np
import torch
from torch import nn

META = {
    "origin_op": "mul_",
    "also_ops": ("addcdiv_",),
    "phase": "optimizer",
    "cause": "learning-rate",
    "symptom": "param-nan",
    "first_bad_step": 5,
    "n_steps": 8,
    "fix": "max(1, total - warm)",
}


def schedule(total, warm, least):
    def factor(k):
        if k < warm:
            return (k + 1) / warm
        progress = np.float64(k - warm) / max(least, np.float64(total - warm))
        return 0.1 + 0.45 * (1 + np.cos(np.pi * min(progress, 1.0)))  # ALSO

    return factor


def build(fixed: bool = False):
    torch.manual_seed(427)
    net = nn.Sequential(nn.Linear(7, 32), nn.GELU(), nn.LayerNorm(32), nn.Linear(32, 2))
    opt = torch.optim.AdamW(net.parameters(), lr=1e-3)
    plan = torch.optim.lr_scheduler.LambdaLR(opt, schedule(total=5, warm=5, least=1.0 if fixed else 0.0))
    gen = torch.Generator().manual_seed(527)

    def step(i):
        x = torch.randn(16, 7, generator=gen)
        opt.zero_grad()
        loss = nn.functional.mse_loss(net(x), x[:, :2].abs())
        loss.backward()
        opt.step()  # ORIGIN
        plan.step()  # ALSO
        return loss

    return net, step
