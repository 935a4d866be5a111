"""A hand-written loop over a dictionary of parameters with torch.func; the rate was tuned for a mean and the loss is a sum."""

import torch
from torch import nn
from torch.func import functional_call, grad_and_value

META = {
    "origin_op": "sub",
    "also_ops": ("mul", "addmm", "linear", "pow", "sum", "copy_"),
    "phase": "optimizer",
    "also_phase": "forward",
    "cause": "learning-rate",
    "also_causes": ("exploding-gradient",),
    "symptom": "loss-inf",
    "first_bad_step": 4,
    "n_steps": 14,
    "oracle": "drift",
    "fix": "the mean",
}


class Surrogate(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(6, 24), nn.ReLU(), nn.Linear(24, 2))

    def forward(self, x):
        return self.net(x)  # FIRST


def build(fixed: bool = False):
    torch.manual_seed(971)
    model = Surrogate()
    params = {n: p.detach().clone() for n, p in model.named_parameters()}
    rate = 0.05
    gen = torch.Generator().manual_seed(1971)

    def objective(params, x, y):
        error = (functional_call(model, params, (x,)) - y).square()  # FIRST
        return error.mean() if fixed else error.sum()  # FIRST

    derivative = grad_and_value(objective)

    def step(i):
        nonlocal params
        x = torch.randn(64, 6, generator=gen)
        y = torch.stack([x[:, 0] * x[:, 1], x.sum(1)], 1)
        grads, loss = derivative(params, x, y)
        params = {n: p - rate * grads[n] for n, p in params.items()}  # ORIGIN
        with torch.no_grad():
            for n, p in model.named_parameters():
                p.copy_(params[n])  # ALSO
        return loss

    return model, step
