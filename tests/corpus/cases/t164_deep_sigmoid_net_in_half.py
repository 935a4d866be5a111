"""Sixteen sigmoid layers under float16 autocast: each takes three quarters of the gradient, and what is left is below the smallest half."""

import torch
from torch import nn

META = {
    "origin_op": "sigmoid",
    "also_ops": ("mm", "addmm", "mul", "_to_copy"),
    "phase": "backward",
    "cause": "dtype-underflow",
    "symptom": "silent-underflow",
    "first_bad_step": 0,
    "n_steps": 5,
    "watch": "grad:layers.0.weight",
    "fix": "residual connections and a non-saturating activation, or float32",
}


class Deep(nn.Module):
    def __init__(self, depth, residual):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(16, 16) for _ in range(depth))
        self.head, self.residual = nn.Linear(16, 3), residual

    def forward(self, x):
        for layer in self.layers:
            h = torch.sigmoid(layer(x))  # ORIGIN
            x = x + h if self.residual else h
        return self.head(x)


def build(fixed: bool = False):
    torch.manual_seed(968)
    model = Deep(16, fixed)
    opt = torch.optim.Adam(model.parameters(), lr=1e-3)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**6)
    gen = torch.Generator().manual_seed(1968)

    def step(i):
        x = torch.randn(24, 16, generator=gen)
        y = torch.randint(0, 3, (24,), generator=gen)
        opt.zero_grad()
        with torch.autocast("cpu", dtype=torch.float16):
            logits = model(x)
        loss = nn.functional.cross_entropy(logits.float(), y)
        scaler.scale(loss).backward()
        scaler.step(opt)
        scaler.update()
        return loss

    return model, step
