"""Gradients are divided by the loss scale by hand, for a log of their norm, and divided again by scaler.step."""

import torch
from torch import nn

META = {
    "origin_op": "div_",
    "also_ops": ("mul_", "div"),
    "phase": "optimizer",
    "cause": "scaler-misuse",
    "symptom": "silent-scaler-misuse",
    "first_bad_step": 0,
    "n_steps": 5,
    "watch": "progress",
    "fix": "scaler.unscale_(opt) once",
}


def build(fixed: bool = False):
    torch.manual_seed(647)
    net = nn.Sequential(nn.Linear(6, 24), nn.GELU(), nn.Linear(24, 3))
    opt = torch.optim.SGD(net.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**12)
    gen = torch.Generator().manual_seed(747)
    log = []

    def step(i):
        x = torch.randn(24, 6, generator=gen)
        y = x[:, :3].argmax(1)
        opt.zero_grad()
        with torch.autocast("cpu", dtype=torch.float16):
            logits = net(x)
        loss = nn.functional.cross_entropy(logits.float(), y)
        scaler.scale(loss).backward()
        if fixed:
            scaler.unscale_(opt)
        else:
            for p in net.parameters():
                p.grad.div_(scaler.get_scale())  # ORIGIN
        log.append(float(torch.stack([p.grad.norm() for p in net.parameters()]).norm()))
        scaler.step(opt)
        scaler.update()
        return loss

    return net, step
