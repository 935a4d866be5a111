"""One batch overflows under autocast: clipping spreads its infinite norm to all gradients, and the scaler skips the step, as it should."""

import torch
from torch import nn

META = {
    "healthy": True,
    "n_steps": 9,
    "why": "the scaler found the infinity at unscale_, before the clipping, and skips the step",
    "skipped_steps": (4,),
}


def build(fixed: bool = False):
    torch.manual_seed(820)
    net = nn.Sequential(nn.Linear(6, 32), nn.GELU(), nn.Linear(32, 1))
    opt = torch.optim.AdamW(net.parameters(), lr=1e-3)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**12)
    gen = torch.Generator().manual_seed(920)

    def step(i):
        x = torch.randn(16, 6, generator=gen)
        y = x.sum(1, keepdim=True) + (3000.0 if i == 4 else 0.0)
        opt.zero_grad()
        with torch.autocast("cpu", dtype=torch.float16):
            out = net(x)
        loss = nn.functional.mse_loss(out.float(), y)
        scaler.scale(loss).backward()
        scaler.unscale_(opt)
        nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        scaler.step(opt)
        scaler.update()
        return loss

    return net, step
