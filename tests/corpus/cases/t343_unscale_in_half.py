"""The loss scale is divided out of the half gradients before they are widened: the very values that the scale saved flush to zero.

Source: FP16 optimizers that unscale model gradients instead of master gradients
"""
import torch
from torch import nn

META = {
    "origin_op": "div_",
    "also_ops": ("div",),
    "phase": "optimizer",
    "also_phase": "forward",
    "cause": "dtype-underflow",
    "symptom": "silent-underflow",
    "first_bad_step": 0,
    "n_steps": 5,
    "watch": "grad:net.0.weight",
    "fix": "widen first, then unscale",
}


class Flow(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Conv2d(2, 6, 3, padding=1), nn.Tanh(), nn.Conv2d(6, 2, 3, padding=1))

    def forward(self, x):
        return self.net(x)


def build(fixed: bool = False):
    torch.manual_seed(356)
    net = Flow().half()
    master = [p.detach().clone().float().requires_grad_() for p in net.parameters()]
    opt = torch.optim.Adam(master, lr=1e-3)
    gen = torch.Generator().manual_seed(357)
    scale = 2.0**15

    def step(i):
        x = torch.randn(2, 2, 16, 16, generator=gen).half()
        target = 0.1 * torch.randn(2, 2, 16, 16, generator=gen)
        net.zero_grad()
        opt.zero_grad()
        loss = 2e-8 * nn.functional.mse_loss(net(x).float(), target)
        (loss * scale).backward()
        for m, p in zip(master, net.parameters(), strict=True):
            if fixed:
                m.grad = p.grad.float().div_(scale)
            else:
                p.grad.div_(scale)  # ORIGIN
                m.grad = p.grad.float()
        opt.step()
        with torch.no_grad():
            for m, p in zip(master, net.parameters(), strict=True):
                p.copy_(m)
        return loss

    return net, step
