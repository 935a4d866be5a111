"""Two optimizers under one scaler, both unscaled before one clipping over all parameters; one batch overflows in one of them."""

import torch
from torch import nn

META = {
    "healthy": True,
    "n_steps": 8,
    "why": "the scaler skips the optimizer with the infinity, and backs off",
    "skipped_steps": (3,),
}


def build(fixed: bool = False):
    torch.manual_seed(843)
    net = nn.ModuleDict({"body": nn.Linear(6, 24), "head": nn.Linear(24, 1)})
    opts = [torch.optim.Adam(net["body"].parameters(), lr=1e-3), torch.optim.Adam(net["head"].parameters(), lr=1e-3)]
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**13)
    gen = torch.Generator().manual_seed(943)

    def step(i):
        x = torch.randn(24, 6, generator=gen)
        y = x.sum(1, keepdim=True) + (5000.0 if i == 3 else 0.0)
        for opt in opts:
            opt.zero_grad()
        with torch.autocast("cpu", dtype=torch.float16):
            out = net["head"](torch.tanh(net["body"](x)))
        loss = nn.functional.mse_loss(out.float(), y)
        scaler.scale(loss).backward()
        for opt in opts:
            scaler.unscale_(opt)
        nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        for opt in opts:
            scaler.step(opt)
        scaler.update()
        return loss

    return net, step
