"""Meta-learning with an RMS-normalised inner step: a dead unit has inner gradient zero, and the outer gradient goes through its root."""

import torch
from torch import nn
from torch.func import functional_call

META = {
    "origin_op": "sqrt",
    "also_ops": ("div", "pow", "mul"),
    "phase": "backward",
    "cause": "sqrt-at-zero",
    "symptom": "grad-nan",
    "first_bad_step": 0,
    "n_steps": 3,
    "fix": "epsilon inside the root",
}


def adapt(net, params, x, y, eps, rate=0.1):
    loss = nn.functional.mse_loss(functional_call(net, params, (x,)), y)
    grads = torch.autograd.grad(loss, list(params.values()), create_graph=True)
    new = {}
    for (name, p), g in zip(params.items(), grads, strict=True):
        size = torch.sqrt(g.square() + eps)  # ORIGIN
        new[name] = p - rate * g / (size + 1e-8)
    return new


def build(fixed: bool = False):
    torch.manual_seed(607)
    net = nn.Sequential(nn.Linear(3, 16), nn.ReLU(), nn.Linear(16, 1))
    with torch.no_grad():
        net[0].bias[:4] = -50.0  # units that no input reaches
    opt = torch.optim.Adam(net.parameters(), lr=1e-3)
    gen = torch.Generator().manual_seed(707)

    def step(i):
        opt.zero_grad()
        total = torch.zeros(())
        for _ in range(2):
            w = torch.randn(3, 1, generator=gen)
            x, q = torch.randn(8, 3, generator=gen), torch.randn(8, 3, generator=gen)
            new = adapt(net, dict(net.named_parameters()), x, x @ w, 1e-12 if fixed else 0.0)
            total = total + nn.functional.mse_loss(functional_call(net, new, (q,)), q @ w)
        loss = total / 2
        loss.backward()
        opt.step()
        return loss

    return net, step
