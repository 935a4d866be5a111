"""Gradients of a half model are divided by the loss scale in place, in half: they were saved by the scale and flushed by the division."""
import torch
from torch import nn

META = {
    "origin_op": "div_",
    "phase": "optimizer",
    "also_phase": "forward",
    "cause": "dtype-underflow",
    "symptom": "silent-underflow",
    "first_bad_step": 0,
    "n_steps": 4,
    "watch": "update:0.weight",
    "fix": "divide float32 copies",
}


def build(fixed: bool = False):
    torch.manual_seed(16)
    net = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 4)).half()
    master = [p.detach().float().clone() for p in net.parameters()]
    scale = 2.0**15
    gen = torch.Generator().manual_seed(17)

    def step(i):
        x = torch.randn(64, 8, generator=gen)
        y = x[:, :4] * 0.5
        net.zero_grad()
        loss = 1e-7 * (net(x.half()).float() - y).pow(2).mean()
        (loss * scale).backward()
        with torch.no_grad():
            for p, m in zip(net.parameters(), master, strict=True):
                if fixed:
                    grad = p.grad.float() / scale
                else:
                    grad = p.grad.div_(scale).float()  # ORIGIN
                m.sub_(2e5 * grad)
                p.copy_(m)
        return loss

    return net, step
