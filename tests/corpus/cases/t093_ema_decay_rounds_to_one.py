"""A moving average whose decay of 0.9999 is kept as a bfloat16 tensor, where it is 1: the average takes nothing in."""

import torch
from torch import nn

META = {
    "origin_op": "rsub",
    "also_ops": ("sub", "lerp_", "mul", "mul_", "add_", "_to_copy", "full"),
    "phase": "optimizer",
    "also_phase": "other",
    "cause": "absorbed-update",
    "also_causes": ("dtype-underflow", "eps-underflow"),
    "symptom": "silent-zero-update",
    "first_bad_step": 0,
    "n_steps": 6,
    "watch": "update:shadow",
    "fix": "keep the decay in float32",
}


class Denoiser(nn.Module):
    def __init__(self, dim=10):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(dim, 24), nn.SiLU(), nn.Linear(24, dim))
        self.register_buffer("shadow", self.net[2].weight.detach().clone())

    def forward(self, x):
        return self.net(x)


def build(fixed: bool = False):
    torch.manual_seed(467)
    model = Denoiser()
    opt = torch.optim.AdamW(model.net.parameters(), lr=3e-3)
    decay = torch.full((), 0.9999, dtype=torch.float32 if fixed else torch.bfloat16)
    gen = torch.Generator().manual_seed(567)

    def step(i):
        x = torch.randn(16, 10, generator=gen)
        noise = torch.randn(16, 10, generator=gen)
        opt.zero_grad()
        with torch.autocast("cpu", dtype=torch.bfloat16):
            guess = model(x + noise)
        loss = nn.functional.mse_loss(guess.float(), noise)
        loss.backward()
        opt.step()
        with torch.no_grad():
            model.shadow.mul_(decay).add_(model.net[2].weight * (1 - decay))  # ORIGIN
        return loss

    return model, step
