"""Poisson regression by LBFGS without a line search: the third site counts far more, its full step overshoots, and exp overflows in the closure."""
import torch
from torch import nn

META = {
    "origin_op": "exp",
    "phase": "forward",
    "cause": "exp-overflow",
    "also_causes": ("learning-rate",),
    "symptom": "loss-nan",
    "first_bad_step": 2,
    "n_steps": 3,
    "fix": "line_search_fn='strong_wolfe'",
}


class PoissonRegression(nn.Module):
    def __init__(self, features):
        super().__init__()
        self.linear = nn.Linear(features, 1)

    def forward(self, x):
        return torch.exp(self.linear(x)).squeeze(-1)  # ORIGIN


def fit(model, x, y, fixed):
    opt = torch.optim.LBFGS(model.parameters(), lr=1.0, max_iter=8, line_search_fn="strong_wolfe" if fixed else None)
    losses = []

    def closure():
        opt.zero_grad()
        rate = model(x)
        loss = (rate - y * torch.log(rate + 1e-8)).mean()
        loss.backward()
        losses.append(loss.detach())
        return loss

    opt.step(closure)
    return losses[-1]


def build(fixed: bool = False):
    torch.manual_seed(62)
    model = PoissonRegression(4)
    gen = torch.Generator().manual_seed(63)
    true = torch.tensor([0.5, -0.3, 0.2, 0.4])

    def step(i):
        x = torch.randn(60, 4, generator=gen)
        y = torch.poisson(torch.exp(x @ true + (6.0 if i == 2 else 0.0)), generator=gen)
        return fit(model, x, y, fixed)

    return model, step
