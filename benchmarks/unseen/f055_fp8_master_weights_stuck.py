"""Weights are stored back in float8 e4m3 after each step: the step is smaller than half a spacing, the copy writes the old value."""
import torch
from torch import nn

META = {
    "origin_op": "_to_copy", "also_ops": ("copy_", "to", "add_"), "phase": "optimizer", "also_phase": "other", "cause": "absorbed-update", "also_causes": ("dtype-underflow",), "symptom": "silent-underflow",
    "first_bad_step": 1, "n_steps": 6, "fix": "keep float32 master weights",
}


def build(fixed: bool = False):
    torch.manual_seed(110)
    net = nn.Sequential(nn.Linear(8, 16, bias=False), nn.ReLU(), nn.Linear(16, 2, bias=False))
    with torch.no_grad():
        for p in net.parameters():
            p.copy_(p.to(torch.float8_e4m3fn).float().clamp_min(-1).where(p.abs() > 0.05, torch.full_like(p, 0.125)))
    opt = torch.optim.SGD(net.parameters(), lr=1e-2)
    gen = torch.Generator().manual_seed(111)

    def step(i):
        x = torch.randn(64, 8, generator=gen)
        y = (x[:, 0] * x[:, 1] > 0).long()
        loss = nn.functional.cross_entropy(net(x), y)
        opt.zero_grad()
        loss.backward()
        opt.step()
        if not fixed:
            with torch.no_grad():
                for p in net.parameters():
                    p.copy_(p.to(torch.float8_e4m3fn))  # ORIGIN
        return loss

    return net, step
