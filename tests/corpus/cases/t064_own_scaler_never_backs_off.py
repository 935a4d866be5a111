"""A home-made loss scaler skips a step on overflow, but nobody calls its update(): the scale stays at 2^26 and all steps are skipped."""

import torch
from torch import nn

META = {
    "origin_op": "_to_copy",
    "phase": "backward",
    "cause": "loss-scale-overflow",
    "also_causes": ("scaler-misuse", "dtype-overflow"),
    "symptom": "grad-nan",
    "first_bad_step": 0,
    "n_steps": 14,
    "twin_skips": (0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10),
    "fix": "scaler.update(overflowed) after each step",
}


class LossScaler:
    def __init__(self, scale):
        self.scale = scale

    @torch.no_grad()
    def step(self, opt):
        grads = [p.grad for group in opt.param_groups for p in group["params"]]
        overflowed = not all(bool(torch.isfinite(g).all()) for g in grads)
        if not overflowed:
            for g in grads:
                g.div_(self.scale)
            opt.step()
        return overflowed

    def update(self, overflowed):
        self.scale *= 0.5 if overflowed else 1.0


def build(fixed: bool = False):
    torch.manual_seed(464)
    net = nn.Sequential(nn.Conv1d(3, 12, 3, padding=1), nn.GELU(), nn.Conv1d(12, 3, 3, padding=1))
    opt = torch.optim.AdamW(net.parameters(), lr=2e-3)
    scaler = LossScaler(2.0**26)
    gen = torch.Generator().manual_seed(564)

    def step(i):
        x = torch.randn(4, 3, 16, generator=gen)
        opt.zero_grad()
        with torch.autocast("cpu", dtype=torch.float16):
            out = net(x)
        loss = nn.functional.mse_loss(out.float(), x.cumsum(-1))  # ORIGIN
        (loss * scaler.scale).backward()  # ALSO
        overflowed = scaler.step(opt)
        if fixed:
            scaler.update(overflowed)
        return loss

    return net, step
