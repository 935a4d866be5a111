"""Hypergradient descent learns its rate from the product of successive gradients; the rate grows past what the problem bears."""

import torch
from torch import nn

META = {
    "origin_op": "sub_",
    "also_ops": ("add_",),
    "phase": "optimizer",
    "cause": "learning-rate",
    "also_causes": ("exploding-gradient",),
    "symptom": "loss-inf",
    "first_bad_step": 5,
    "n_steps": 14,
    "oracle": "drift",
    "fix": "a smaller hyper-rate and a ceiling on the rate",
}


def build(fixed: bool = False):
    torch.manual_seed(626)
    net = nn.Sequential(nn.Linear(6, 12), nn.Linear(12, 1))
    params = list(net.parameters())
    gen = torch.Generator().manual_seed(726)
    truth = torch.randn(6, 1, generator=gen)
    rate, previous = torch.tensor(0.01), None
    hyper = 1e-6 if fixed else 0.2

    def step(i):
        nonlocal rate, previous
        x = torch.randn(32, 6, generator=gen)
        net.zero_grad()
        loss = nn.functional.mse_loss(net(x), x @ truth)  # FIRST
        loss.backward()
        grads = [p.grad.clone() for p in params]
        if previous is not None:
            rate = rate + hyper * sum((g * h).sum() for g, h in zip(grads, previous, strict=True))
        previous = grads
        with torch.no_grad():
            for p, g in zip(params, grads, strict=True):
                p.sub_(rate * g)  # ORIGIN
        return loss

    return net, step
