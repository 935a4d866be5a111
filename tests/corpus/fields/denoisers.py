"""Solvers, weights and embeddings of diffusion and flow models."""

import math
from itertools import pairwise

import torch
from programs import fault, train
from torch import nn


def model(seed):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(3, 16), nn.SiLU(), nn.Linear(16, 2))


def predict(net, x, t):
    return net(torch.cat([x, t[:, None]], -1))


@fault("div-by-zero", "div", step=2)
def multistep_ratio_of_a_repeated_time(fixed):
    """A second-order solver, unrolled; rounding of the times made two of them equal."""
    net = model(0)

    def solve(x, times):
        if fixed:
            times = times.unique().flip(0)
        lam = -torch.log(times)
        old = predict(net, x, times[:1].expand(len(x)))
        for k in range(1, len(times) - 1):
            h, h_last = lam[k + 1] - lam[k], lam[k] - lam[k - 1]
            new = predict(net, x, times[k].expand(len(x)))
            r = h_last / h
            d = new + (new - old) / (2 * r)  # ORIGIN
            x, old = x - torch.expm1(-h) * d, new
        return x

    def loss(i):
        times = torch.tensor([0.9, 0.6, 0.3 if i != 2 else 0.6, 0.1])
        gen = torch.Generator().manual_seed(i)
        return solve(torch.randn(5, 2, generator=gen), times).square().mean()

    return net, train(net.parameters(), loss)


@fault("sqrt-of-negative", "sqrt", step=1)
def ancestral_noise_of_a_rising_schedule(fixed):
    net = model(1)

    def ancestral(x, here, there, eta=1.0):
        share = there**2 * (here**2 - there**2) / here**2
        up = torch.sqrt(share.clamp(min=0) if fixed else share)  # ORIGIN
        up = torch.minimum(there, eta * up)
        down = (there**2 - up**2).clamp(min=0) ** 0.5
        d = (x - predict(net, x, here.expand(len(x)))) / here
        return x + d * (down - here) + torch.ones_like(x) * up

    def loss(i):
        sigmas = torch.tensor([3.0, 1.5, 0.5]) if i != 1 else torch.tensor([1.5, 3.0, 0.5])
        x = torch.ones(4, 2)
        for here, there in pairwise(sigmas):
            x = ancestral(x, here, there)
        return x.square().mean()

    return net, train(net.parameters(), loss, 1e-4)


@fault("dtype-overflow", "mul", step=0, ops=("_to_copy",))
def frequencies_of_a_long_schedule_in_half(fixed):
    torch.manual_seed(2)
    net = nn.Linear(8, 2)

    def embed(t, dim=8, top=100.0):
        dtype = torch.float32 if fixed else torch.float16
        grid = torch.exp(math.log(top) * torch.linspace(0, 1, dim // 2)).to(dtype)
        angle = t.to(dtype)[:, None] * grid  # ORIGIN
        return torch.cat([angle.sin(), angle.cos()], -1).float()

    t = torch.tensor([10.0, 400.0, 999.0])
    return net, train(net.parameters(), lambda i: (net(embed(t)) - 1).square().mean())


@fault("log-of-zero", "logit", step=2, ops=("log", "div"), also=("div-by-zero",))
def density_of_the_last_time(fixed):
    """Weights of a flow by the logit-normal density of its times."""
    net = model(3)

    def weight(t):
        if fixed:
            t = t.clamp(1e-4, 1 - 1e-4)
        return torch.exp(-0.5 * torch.logit(t) ** 2) / (t * (1 - t))  # ORIGIN

    def loss(i):
        gen = torch.Generator().manual_seed(i)
        x, noise = torch.randn(6, 2, generator=gen), torch.randn(6, 2, generator=gen)
        t = torch.rand(6, generator=gen)
        if i == 2:
            t[0] = 1.0
        error = predict(net, torch.lerp(x, noise, t[:, None]), t) - (noise - x)
        return (weight(t) * error.square().sum(-1)).mean()

    return net, train(net.parameters(), loss)


@fault("log-of-zero", "log", step=0, also=("zero-times-inf",), ops=("mul",))
def posterior_of_an_absorbing_chain(fixed):
    """The true posterior of a masked token is certain: p log p at p = 0."""
    torch.manual_seed(4)
    net = nn.Embedding(5, 4)
    ids = torch.tensor([0, 3, 4, 4])

    def divergence(q, logits):
        if fixed:
            return torch.xlogy(q, q).sum(-1) - (q * logits.log_softmax(-1)).sum(-1)
        return (q * (torch.log(q) - logits.log_softmax(-1))).sum(-1)  # ORIGIN

    def loss(i):
        q = torch.eye(4)[ids.clamp(max=3)] * 0.75 + torch.tensor([0.25, 0, 0, 0])
        return divergence(q, net(ids)).mean()

    return net, train(net.parameters(), loss)
