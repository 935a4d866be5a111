"""Differentially private SGD: the clip factor C / norm of a sample with zero gradient is inf, and clamped to one before use."""

import torch
from torch import nn
from torch.func import functional_call, grad, vmap

META = {"healthy": True, "n_steps": 5, "why": "min(1, C / 0) = 1 is the right factor for a zero gradient"}


def build(fixed: bool = False):
    torch.manual_seed(33)
    net = nn.Sequential(nn.Linear(4, 12), nn.ReLU(), nn.Linear(12, 12), nn.ReLU(), nn.Linear(12, 1))
    opt = torch.optim.SGD(net.parameters(), lr=0.1)
    gen = torch.Generator().manual_seed(333)

    def sample_loss(params, x, y, weight):
        return weight * (functional_call(net, params, (x,)).squeeze(-1) - y).square()

    per_sample = vmap(grad(sample_loss), in_dims=(None, 0, 0, 0))

    def step(i):
        x, weight = torch.randn(8, 4, generator=gen), torch.ones(8)
        weight[3] = 0.0  # a padded sample
        y = x[:, 0]
        params = {k: p.detach() for k, p in net.named_parameters()}
        grads = per_sample(params, x, y, weight)
        norm = torch.sqrt(sum(g.flatten(1).square().sum(1) for g in grads.values()))
        factor = (1.0 / norm).clamp(max=1.0)
        opt.zero_grad()
        for k, p in net.named_parameters():
            g = grads[k]
            p.grad = (g * factor.view(-1, *[1] * (g.dim() - 1))).mean(0)
        opt.step()
        with torch.no_grad():
            return (net(x).squeeze(-1) - y).square().mean()

    return net, step
