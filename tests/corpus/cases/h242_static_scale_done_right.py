"""A static loss scale by hand: the loss is multiplied, each gradient divided before clipping and step."""

import torch
from torch import nn

META = {
    "healthy": True,
    "n_steps": 6,
    "why": "the scale is divided out before anything uses the gradients",
}
SCALE = 1024.0


def build(fixed: bool = False):
    torch.manual_seed(842)
    net = nn.Sequential(nn.Conv1d(2, 8, 3), nn.ReLU(), nn.Conv1d(8, 2, 1))
    opt = torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9)
    gen = torch.Generator().manual_seed(942)

    def step(i):
        x = torch.randn(8, 2, 12, generator=gen)
        opt.zero_grad()
        with torch.autocast("cpu", dtype=torch.float16):
            out = net(x)
        loss = nn.functional.mse_loss(out.float(), x[..., 1:-1])
        (loss * SCALE).backward()
        for p in net.parameters():
            p.grad.div_(SCALE)
        nn.utils.clip_grad_norm_(net.parameters(), 0.5)
        opt.step()
        return loss

    return net, step
