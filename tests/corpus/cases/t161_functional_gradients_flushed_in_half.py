"""A loop in torch.func style with half-precision weights: the loss is weighted by 1e-6, and its gradient is flushed to zero where it enters half."""

import torch
from torch import nn
from torch.func import functional_call, grad_and_value

META = {
    "origin_op": "_to_copy",
    "phase": "backward",
    "cause": "dtype-underflow",
    "symptom": "silent-underflow",
    "first_bad_step": 0,
    "n_steps": 5,
    "fix": "a loss scale",
}


class Flow(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(12, 24), nn.SiLU(), nn.Linear(24, 12))

    def forward(self, x):
        return self.net(x)


def build(fixed: bool = False):
    torch.manual_seed(960)
    model = Flow().half()
    params = {n: p.detach().clone() for n, p in model.named_parameters()}
    scale = 2.0**20 if fixed else 1.0
    gen = torch.Generator().manual_seed(1960)

    def objective(params, x, target):
        out = functional_call(model, params, (x.half(),)).float()  # ORIGIN
        loss = 1e-6 * (out - target).square().mean()  # ALSO
        return loss * scale

    derivative = grad_and_value(objective)

    def step(i):
        nonlocal params
        x = torch.randn(64, 12, generator=gen)
        grads, loss = derivative(params, x, x.roll(1, 1))
        params = {n: (p.float() - 2e4 / scale * grads[n].float()).half() for n, p in params.items()}
        with torch.no_grad():
            for n, p in model.named_parameters():
                p.copy_(params[n])
        return loss / scale

    return model, step
