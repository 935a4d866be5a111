"""Half-precision weights and a hand-made loss scale; the half gradients are divided by the scale where they lie, and are flushed to zero before the masters see them."""

import torch
from torch import nn

META = {
    "origin_op": "div_",
    "also_ops": ("_foreach_div_", "mul_"),
    "phase": "optimizer",
    "also_phase": "backward",
    "cause": "dtype-underflow",
    "symptom": "silent-underflow",
    "first_bad_step": 0,
    "n_steps": 5,
    "watch": "grad:enc.weight",
    "fix": "divide after the cast to float32",
}


class Auto(nn.Module):
    def __init__(self):
        super().__init__()
        self.enc, self.dec = nn.Linear(64, 16, bias=False), nn.Linear(16, 64, bias=False)

    def forward(self, x):
        return self.dec(torch.tanh(self.enc(x)))


class HalfWeights:
    def __init__(self, model, scale, widen_first):
        self.model, self.scale, self.widen_first = model, scale, widen_first
        self.masters = [p.detach().float().clone() for p in model.parameters()]
        self.opt = torch.optim.SGD(self.masters, lr=5e5)

    def backward(self, loss):
        self.model.zero_grad()
        (loss * self.scale).backward()
        for master, p in zip(self.masters, self.model.parameters(), strict=True):
            if self.widen_first:
                master.grad = p.grad.float() / self.scale
            else:
                master.grad = p.grad.div_(self.scale).float()  # ORIGIN

    @torch.no_grad()
    def step(self):
        self.opt.step()
        for master, p in zip(self.masters, self.model.parameters(), strict=True):
            p.copy_(master)


def build(fixed: bool = False):
    torch.manual_seed(982)
    model = Auto().half()
    mixed = HalfWeights(model, 2.0**14, fixed)
    gen = torch.Generator().manual_seed(1982)

    def step(i):
        x = 2e-3 * torch.randn(8, 64, generator=gen)
        out = model(x.half()).float()
        loss = 0.02 * (out - x).square().mean()
        mixed.backward(loss)
        mixed.step()
        return loss

    return model, step
