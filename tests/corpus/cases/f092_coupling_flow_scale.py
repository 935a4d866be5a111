"""A coupling flow without module: the unbounded log-scale of an outlier goes through exp."""

import torch
from torch.nn.functional import tanh

META = {
    "origin_op": "exp",
    "phase": "forward",
    "cause": "exp-overflow",
    "symptom": "loss-nan",
    "first_bad_step": 4,
    "n_steps": 7,
    "fix": "bound the log-scale by 2 tanh(s / 2)",
}


def make_flow(gen, bounded, dim=4, width=16, depth=3):
    half = dim // 2
    weights = {}
    for k in range(depth):
        weights[f"in{k}"] = (torch.randn(half, width, generator=gen) * 0.5).requires_grad_()
        weights[f"out{k}"] = (torch.randn(width, dim, generator=gen) * 0.1).requires_grad_()

    def couple(k, x):
        a, b = x[:, :half], x[:, half:]
        h = torch.relu(a @ weights[f"in{k}"])
        s, t = (h @ weights[f"out{k}"]).chunk(2, 1)

        def bound(v):
            return 2 * tanh(v / 2) if bounded else v

        s = bound(s)
        return torch.cat([b * torch.exp(s) + t, a], 1), s.sum(1)  # ORIGIN

    def log_prob(x):
        total = 0.0
        for k in range(depth):
            x, logdet = couple(k, x)
            total = total + logdet
        return total - 0.5 * x.square().sum(1)

    return weights, log_prob


def build(fixed: bool = False):
    gen = torch.Generator().manual_seed(192)
    weights, log_prob = make_flow(gen, fixed)
    opt = torch.optim.Adam(weights.values(), lr=1e-3)

    def step(i):
        x = torch.randn(24, 4, generator=gen)
        if i == 4:
            x[11] = torch.tensor([900.0, -700.0, 500.0, 300.0])
        opt.zero_grad()
        loss = -log_prob(x).mean()
        loss.backward()
        opt.step()
        return loss

    step.parameters = weights
    return None, step
