"""Gradients are clamped by hand while they are still multiplied by the loss scale, so that every one of them ends at the limit."""

import torch
from torch import nn
from torch.nn import functional as F

META = {
    "origin_op": "clamp_",
    "also_ops": ("_foreach_clamp_min_", "_foreach_clamp_max_", "clamp", "hardtanh_"),
    "phase": "optimizer",
    "cause": "scaler-misuse",
    "symptom": "silent-scaler-misuse",
    "first_bad_step": 0,
    "n_steps": 5,
    "watch": "progress",
    "fix": "scaler.unscale_(opt) first",
}


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.seq = nn.Sequential(nn.Conv1d(2, 8, 5), nn.ReLU(), nn.Flatten(), nn.Linear(96, 3))

    def forward(self, x):
        return self.seq(x)


def build(fixed: bool = False):
    torch.manual_seed(301)
    net = Net()
    opt = torch.optim.SGD(net.parameters(), lr=1e-2)
    gen = torch.Generator().manual_seed(801)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**14)

    def step(i):
        x = torch.randn(8, 2, 16, generator=gen)
        opt.zero_grad()
        with torch.autocast("cpu", dtype=torch.bfloat16):
            out = net(x)
        loss = F.cross_entropy(out.float(), torch.arange(8) % 3)
        scaler.scale(loss).backward()
        if fixed:
            scaler.unscale_(opt)
        for p in net.parameters():
            p.grad.clamp_(-0.5, 0.5)  # ORIGIN
        scaler.step(opt)
        scaler.update()
        return loss

    return net, step
