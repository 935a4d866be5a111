"""Bayesian inference."""


import torch
from programs import fault, train
from torch import nn
from torch.nn import functional as F


@fault("log-of-zero", "log", step=1)
def posterior_scale_that_underflows(fixed):
    torch.manual_seed(0)
    mean, raw = nn.Parameter(torch.randn(4)), nn.Parameter(torch.zeros(4))

    def loss(i):
        scale = F.softplus(raw - (200.0 if i == 1 else 0.0))
        if fixed:
            scale = scale + 1e-6
        kl = -torch.log(scale) + (scale**2 + mean**2) / 2 - 0.5  # ORIGIN
        return kl.sum()

    return None, train([mean, raw], loss)


@fault("div-by-zero", "div", step=2, also=("dtype-underflow",), ops=("exp",))
def importance_weights_of_unlikely_particles(fixed):
    torch.manual_seed(1)
    centre = nn.Parameter(torch.zeros(2))
    gen = torch.Generator().manual_seed(2)

    def loss(i):
        particle = torch.randn(20, 2, generator=gen)
        seen = torch.zeros(2) if i != 2 else torch.full((2,), 40.0)
        log_w = -0.5 * (particle + centre - seen).square().sum(-1)
        if fixed:
            weight = torch.softmax(log_w, 0)
        else:
            weight = torch.exp(log_w)  # ALSO
            weight = weight / weight.sum()  # ORIGIN
        return (weight[:, None] * particle).sum(0).square().sum()

    return None, train([centre], loss)


@fault("log-of-zero", "log", step=0, also=("degenerate-matrix",), ops=("logdet", "slogdet", "linalg_slogdet", "_linalg_slogdet"))
def evidence_of_repeated_inputs(fixed):
    torch.manual_seed(3)
    length = nn.Parameter(torch.tensor(1.0))
    x = torch.tensor([0.0, 0.0, 1.0, 2.0])

    def loss(i):
        k = torch.exp(-((x[:, None] - x[None]) / length) ** 2)
        if fixed:
            k = k + 1e-3 * torch.eye(4)
        return torch.log(torch.linalg.det(k))  # ORIGIN

    return None, train([length], loss)


@fault("log-of-zero", "log", step=1, also=("infeasible-likelihood",), ops=("xlogy",))
def simplex_observation_on_its_edge(fixed):
    torch.manual_seed(4)
    raw = nn.Parameter(torch.zeros(3))

    def loss(i):
        alpha = F.softplus(raw) + 1
        seen = torch.tensor([0.2, 0.3, 0.5]) if i != 1 else torch.tensor([0.5, 0.5, 0.0])
        if fixed:
            seen = (seen + 1e-4) / 1.0003
        density = ((alpha - 1) * torch.log(seen)).sum()  # ORIGIN
        return -(density + torch.lgamma(alpha.sum()) - torch.lgamma(alpha).sum())

    return None, train([raw], loss)


@fault("sqrt-of-negative", "sqrt", step=1)
def noise_of_a_sampler_with_little_friction(fixed):
    torch.manual_seed(5)
    theta = nn.Parameter(torch.randn(5))

    def loss(i):
        grad_noise = torch.tensor(0.01 if i != 1 else 0.3)
        spare = 2 * (0.1 - grad_noise) * 0.01
        if fixed:
            spare = spare.clamp_min(0.0)
        jump = torch.sqrt(spare) * torch.ones(5)  # ORIGIN
        return (theta + jump).square().sum()

    return None, train([theta], loss)


@fault("exp-overflow", "exp", step=2, also=("inf-minus-inf",), ops=("lgamma", "sub"))
def concentration_on_a_log_scale(fixed):
    torch.manual_seed(6)
    raw = nn.Parameter(torch.zeros(2))
    seen = torch.tensor([0.3, 0.6])

    def loss(i):
        level = raw + (100.0 if i == 2 else 0.0)
        level = level.clamp(max=10.0) if fixed else level
        a = torch.exp(level)  # ORIGIN
        normal = torch.lgamma(a).sum() - torch.lgamma(a.sum())
        return normal - ((a - 1) * torch.log(seen)).sum()

    return None, train([raw], loss)
