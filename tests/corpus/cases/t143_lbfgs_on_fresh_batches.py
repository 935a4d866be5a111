"""L-BFGS without line search, a new batch each step: curvature of one batch sends the weights of the next far away."""

import torch
from torch import nn

META = {
    "origin_op": "add_",
    "also_ops": ("dot", "mul", "div"),
    "phase": "optimizer",
    "cause": "learning-rate",
    "also_causes": ("exploding-gradient", "optimizer-arithmetic"),
    "symptom": "grad-nan",
    "first_bad_step": 8,
    "n_steps": 14,
    "fix": "lr=1 and line_search_fn='strong_wolfe'",
}


def build(fixed: bool = False):
    torch.manual_seed(643)
    net = nn.Sequential(nn.Linear(6, 12), nn.Softplus(), nn.Linear(12, 1))
    opt = torch.optim.LBFGS(
        net.parameters(), lr=1.0 if fixed else 2.5, max_iter=4, line_search_fn="strong_wolfe" if fixed else None
    )
    gen = torch.Generator().manual_seed(743)

    def step(i):
        x = torch.randn(8, 6, generator=gen)
        y = x[:, :1] * x[:, 1:2]

        def closure():
            opt.zero_grad()
            out = net(x)  # ALSO
            loss = (out - y).square().mean()  # ALSO
            loss.backward()
            return loss

        return opt.step(closure)  # ORIGIN

    return net, step
