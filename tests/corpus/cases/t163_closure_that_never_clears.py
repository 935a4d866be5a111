"""LBFGS on a physics-informed fit; the closure forgets zero_grad, so every evaluation adds to the gradients of all before it."""

import torch
from torch import nn

META = {
    "origin_op": "add_",
    "also_ops": ("addmm", "mul", "pow", "mse_loss", "linear", "mean"),
    "phase": "optimizer",
    "also_phase": "forward",
    "cause": "learning-rate",
    "also_causes": ("exploding-gradient",),
    "symptom": "grad-nan",
    "first_bad_step": 2,
    "n_steps": 8,
    "oracle": "drift",
    "fix": "opt.zero_grad() in the closure",
}


class Field(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(1, 16), nn.Softplus(), nn.Linear(16, 16), nn.Softplus(), nn.Linear(16, 1))

    def forward(self, x):
        return self.net(x)  # FIRST


def residual(model, x):
    u = model(x)
    (du,) = torch.autograd.grad(u.sum(), x, create_graph=True)  # FIRST
    return du + u  # FIRST


def build(fixed: bool = False):
    torch.manual_seed(964)
    model = Field()
    opt = torch.optim.LBFGS(model.parameters(), lr=0.3, max_iter=4, history_size=4)
    gen = torch.Generator().manual_seed(1964)

    x = (2 * torch.rand(32, 1, generator=gen)).requires_grad_()

    def step(i):
        start = torch.zeros(1, 1)

        def closure():
            if fixed:
                opt.zero_grad()
            loss = residual(model, x).square().mean() + (model(start) - 1).square().mean()  # FIRST
            loss.backward()
            return loss

        return opt.step(closure).detach()  # ORIGIN

    return model, step
