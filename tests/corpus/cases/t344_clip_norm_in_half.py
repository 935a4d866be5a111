"""Gradient clipping by hand on half gradients: the sum of squares is inf in float16, max_norm / inf is zero, every gradient is wiped out.

Source: facebookresearch/fairscale#263 (grad norms become inf because the squares are taken in fp16)
"""
import torch
from torch import nn

META = {
    "origin_op": "sum",
    "also_ops": ("pow", "add", "mul_", "mul"),
    "phase": "optimizer",
    "also_phase": "forward",
    "cause": "dtype-overflow",
    "also_causes": ("clip-nonfinite-norm", "dtype-underflow"),
    "symptom": "silent-underflow",
    "first_bad_step": 2,
    "n_steps": 5,
    "watch": "grad:net.0.weight",
    "fix": "the norm in float32",
}


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(12, 32), nn.ReLU(), nn.Linear(32, 2))

    def forward(self, x):
        return self.net(x)


def clip(params, max_norm, wide):
    total = 0.0
    for p in params:
        g = p.grad.float() if wide else p.grad
        total = total + g.pow(2).sum()  # ORIGIN
    coef = (max_norm / (total.sqrt() + 1e-6)).clamp(max=1.0)
    for p in params:
        p.grad.mul_(coef)  # ALSO


def build(fixed: bool = False):
    torch.manual_seed(358)
    net = Net().half()
    params = list(net.parameters())
    opt = torch.optim.SGD(params, lr=1e-2)
    gen = torch.Generator().manual_seed(359)

    def step(i):
        x = torch.randn(32, 12, generator=gen)
        y = x[:, :2] * (1.0 if i < 2 else 400.0)  # targets of the second site come in other units
        opt.zero_grad()
        loss = nn.functional.mse_loss(net(x.half()).float(), y)
        loss.backward()
        clip(params, 1.0, fixed)
        opt.step()
        return loss

    return net, step
