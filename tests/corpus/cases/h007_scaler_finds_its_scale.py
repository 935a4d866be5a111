"""Mixed precision with a scaler that starts far too high: several skipped steps, then training."""

import torch
from torch import nn

META = {
    "healthy": True,
    "n_steps": 8,
    "skipped_steps": (0, 1, 2, 3),
    "why": "a skipped step halves the scale and leaves the parameters alone",
}


def build(fixed: bool = False):
    torch.manual_seed(7)
    net = nn.Sequential(
        nn.Conv1d(2, 8, 3, padding=1),
        nn.GELU(),
        nn.Conv1d(8, 8, 3, padding=1),
        nn.GELU(),
        nn.Flatten(),
        nn.Linear(96, 1),
    )
    opt = torch.optim.AdamW(net.parameters(), lr=1e-3)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**26, backoff_factor=0.25)
    gen = torch.Generator().manual_seed(307)

    def step(i):
        x = torch.randn(8, 2, 12, generator=gen)
        opt.zero_grad()
        with torch.autocast("cpu", dtype=torch.float16):
            out = net(x)
        loss = nn.functional.mse_loss(out.float().squeeze(1), x.mean((1, 2)))
        scaler.scale(loss).backward()
        scaler.unscale_(opt)
        nn.utils.clip_grad_norm_(net.parameters(), 5.0)
        scaler.step(opt)
        scaler.update()
        return loss

    return net, step
