"""A loss scale by hand done right: the first steps overflow in half, are noticed, thrown away, and the scale is halved."""
import torch
from torch import nn

META = {"healthy": True, "n_steps": 10, "why": "infinite gradients are noticed and never reach a parameter"}


def build(fixed: bool = False):
    torch.manual_seed(100)
    net = nn.Sequential(nn.Linear(8, 32), nn.Tanh(), nn.Linear(32, 3))
    opt = torch.optim.SGD(net.parameters(), lr=0.1)
    gen = torch.Generator().manual_seed(101)
    scale = 2.0**22

    def step(i):
        nonlocal scale
        x = torch.randn(32, 8, generator=gen)
        opt.zero_grad()
        with torch.autocast("cpu", torch.float16):
            out = net(x)
        loss = nn.functional.mse_loss(out.float(), x[:, :3])
        (loss * scale).backward()
        grads = [p.grad for p in net.parameters()]
        if not all(torch.isfinite(g).all() for g in grads):
            scale /= 4.0
            opt.zero_grad()
            return loss
        for g in grads:
            g.div_(scale)
        opt.step()
        return loss

    return net, step
