"""Survival and event times."""


import torch
from programs import fault, train
from torch import nn


@fault("log-of-zero", "log", step=1, also=("log-of-negative",))
def survival_beyond_the_last_bin(fixed):
    torch.manual_seed(0)
    net = nn.Linear(3, 5)
    x = torch.randn(8, 3)

    def loss(i):
        mass = torch.softmax(net(x) * (400.0 if i == 1 else 1.0), -1)
        alive = 1 - torch.cumsum(mass, -1)[:, 3]
        return -torch.log(alive.clamp_min(1e-7) if fixed else alive).mean()  # ORIGIN

    return net, train(net.parameters(), loss)


@fault("exp-overflow", "pow", step=2, also=("div-by-tiny",), ops=("div",))
def weibull_hazard_of_a_tiny_scale(fixed):
    torch.manual_seed(1)
    shape = nn.Parameter(torch.tensor(6.0))
    log_scale = nn.Parameter(torch.tensor(0.0))
    gen = torch.Generator().manual_seed(2)

    def loss(i):
        time = torch.rand(10, generator=gen) * 5 + 1
        if i == 2:
            time[3] = 3.65e7
        rate = time / torch.exp(log_scale)
        cumulative = (rate.clamp(max=100.0) if fixed else rate) ** shape  # ORIGIN
        return (cumulative - shape * torch.log(rate)).mean()

    return None, train([shape, log_scale], loss, lr=1e-9)


@fault("div-by-zero", "div", step=2, also=("empty-reduction",), ops=("mean",))
def concordance_without_comparable_pairs(fixed):
    torch.manual_seed(3)
    net = nn.Linear(3, 1)
    gen = torch.Generator().manual_seed(4)

    def loss(i):
        x, time = torch.randn(6, 3, generator=gen), torch.rand(6, generator=gen)
        event = torch.ones(6, dtype=torch.bool) if i != 2 else torch.zeros(6, dtype=torch.bool)
        risk = net(x)[:, 0]
        pairs = (time[:, None] < time[None]) & event[:, None]
        soft = torch.sigmoid(risk[:, None] - risk[None]) * pairs
        count = pairs.sum().clamp_min(1) if fixed else pairs.sum()
        return 1 - soft.sum() / count  # ORIGIN

    return net, train(net.parameters(), loss)


@fault("exp-overflow", "exp", step=1)
def partial_likelihood_of_large_risks(fixed):
    torch.manual_seed(5)
    net = nn.Linear(3, 1)
    gen = torch.Generator().manual_seed(6)

    def loss(i):
        x = torch.randn(12, 3, generator=gen)
        if i == 1:
            x = x * 1000
        risk = net(x)[:, 0]
        if fixed:
            total = torch.logcumsumexp(risk, 0)
        else:
            total = torch.log(torch.cumsum(torch.exp(risk), 0))  # ORIGIN
        return (total - risk).mean()

    return net, train(net.parameters(), loss)
