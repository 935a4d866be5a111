"""The summed squared error is kept in float16 under autocast; a loud recording makes the sum larger than 65504."""

import torch
from torch import nn

META = {
    "origin_op": "sum",
    "phase": "forward",
    "cause": "dtype-overflow",
    "symptom": "loss-inf",
    "first_bad_step": 9,
    "n_steps": 12,
    "fix": "cast the error to float32 before it is summed",
}


class Denoiser(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Conv1d(1, 12, 9, padding=4), nn.Tanh(), nn.Conv1d(12, 1, 9, padding=4))

    def forward(self, x):
        h = self.net(x)
        return x.to(h.dtype) - h


def build(fixed: bool = False):
    torch.manual_seed(409)
    net = Denoiser()
    opt = torch.optim.Adam(net.parameters(), lr=1e-3)
    scaler = torch.amp.GradScaler("cpu", init_scale=1.0)
    gen = torch.Generator().manual_seed(509)

    def step(i):
        clean = torch.sin(torch.arange(256) / 9.0) * torch.rand(8, 1, 1, generator=gen)
        noise = torch.randn(8, 1, 256, generator=gen) * (0.3 if i < 9 else 9.0)
        opt.zero_grad()
        with torch.autocast("cpu", dtype=torch.float16):
            restored = net(clean + noise)
            error = restored - clean.to(restored.dtype)
            if fixed:
                error = error.float()
            loss = error.square().sum()  # ORIGIN
        scaler.scale(loss).backward()
        scaler.step(opt)
        scaler.update()
        return loss

    return net, step
