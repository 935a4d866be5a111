"""Prices in hundreds, squared error computed on half-precision outputs: the loss itself is infinite, and no loss scale can help."""

import torch
from torch import nn

META = {
    "origin_op": "pow",
    "also_ops": ("square", "mul"),
    "phase": "forward",
    "cause": "dtype-overflow",
    "symptom": "loss-inf",
    "first_bad_step": 2,
    "n_steps": 8,
    "fix": "out.float() before the difference",
}


def build(fixed: bool = False):
    torch.manual_seed(636)
    net = nn.Sequential(nn.Linear(7, 16), nn.GELU(), nn.Linear(16, 1))
    opt = torch.optim.AdamW(net.parameters(), lr=1e-3)
    scaler = torch.amp.GradScaler("cpu", init_scale=64.0)
    gen = torch.Generator().manual_seed(736)

    def step(i):
        x = torch.randn(16, 7, generator=gen)
        price = (100.0 if i < 2 else 400.0) + 10 * x[:, :1]
        opt.zero_grad()
        with torch.autocast("cpu", dtype=torch.float16):
            out = net(x)
            if fixed:
                out = out.float()
            loss = ((out - price.to(out.dtype)) ** 2).mean()  # ORIGIN
        scaler.scale(loss).backward()
        scaler.unscale_(opt)
        nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        scaler.step(opt)
        scaler.update()
        return loss

    return net, step
