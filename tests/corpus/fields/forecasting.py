"""Time series."""


import torch
from programs import fault, train
from torch import nn
from torch.nn import functional as F


@fault("div-by-zero", "div", step=1)
def symmetric_error_of_two_zeros(fixed):
    torch.manual_seed(0)
    net = nn.Linear(4, 1)
    gen = torch.Generator().manual_seed(1)

    def loss(i):
        past = torch.rand(8, 4, generator=gen)
        demand = torch.rand(8, generator=gen)
        forecast = F.relu(net(past)[:, 0] - (9.0 if i == 1 else 0.0) + 0.3)
        if i == 1:
            demand[3] = 0.0
        size = forecast.abs() + demand.abs() + (1e-6 if fixed else 0.0)
        return ((forecast - demand).abs() / size).mean()  # ORIGIN

    return net, train(net.parameters(), loss)


@fault("div-by-zero", "div", step=2, also=("std-of-constant",))
def instance_scale_of_a_flat_window(fixed):
    torch.manual_seed(2)
    net = nn.Linear(6, 2)
    gen = torch.Generator().manual_seed(3)

    def loss(i):
        window = torch.randn(5, 8, generator=gen)
        if i == 2:
            window[4] = 3.0
        past, future = window[:, :6], window[:, 6:]
        middle, spread = past.mean(1, keepdim=True), past.std(1, keepdim=True)
        if fixed:
            spread = spread + 1e-5
        z = (past - middle) / spread  # ORIGIN
        return (net(z) * spread + middle - future).square().mean()

    return net, train(net.parameters(), loss)


@fault("div-by-zero", "div", step=0)
def box_cox_at_lambda_zero(fixed):
    torch.manual_seed(4)
    power = nn.Parameter(torch.zeros(()))
    series = torch.rand(9) + 0.5

    def loss(i):
        lam = power + (1e-4 if fixed else 0.0)
        y = (series**lam - 1) / lam  # ORIGIN
        return (y - y.mean()).square().mean()

    return None, train([power], loss)


@fault("log-of-negative", "log", step=3)
def variance_recursion_below_zero(fixed):
    torch.manual_seed(5)
    omega = nn.Parameter(torch.tensor(0.1))
    persist = nn.Parameter(torch.tensor(0.5))
    gen = torch.Generator().manual_seed(6)

    def loss(i):
        shock = torch.randn(6, generator=gen)
        variance = torch.tensor(1.0)
        total = torch.tensor(0.0)
        for t in range(6):
            variance = omega + persist * variance - (3.0 if i == 3 else 0.0)
            if fixed:
                variance = variance.clamp_min(1e-3)
            total = total + torch.log(variance) + shock[t] ** 2 / (variance + 5)  # ORIGIN
        return total

    return None, train([omega, persist], loss)


@fault("div-by-zero", "div", step=1)
def naive_scale_of_a_constant_series(fixed):
    torch.manual_seed(7)
    net = nn.Linear(6, 1)
    gen = torch.Generator().manual_seed(8)

    def loss(i):
        past = torch.randn(4, 6, generator=gen)
        if i == 1:
            past[0] = 2.0
        naive = past.diff(dim=1).abs().mean(1)
        if fixed:
            naive = naive.clamp_min(1e-6)
        return ((net(past)[:, 0] - past[:, -1]).abs() / naive).mean()  # ORIGIN

    return net, train(net.parameters(), loss)


@fault("log-of-zero", "log", step=2, also=("div-by-zero",))
def returns_of_a_delisted_stock(fixed):
    torch.manual_seed(9)
    net = nn.Linear(5, 1)
    gen = torch.Generator().manual_seed(10)

    def loss(i):
        price = torch.rand(3, 6, generator=gen) + 1
        if i == 2:
            price[1, 5] = 0.0
        if fixed:
            price = price.clamp_min(1e-2)
        returns = torch.log(price[:, 1:] / price[:, :-1])  # ORIGIN
        return (net(returns)[:, 0] - returns[:, -1]).square().mean()

    return net, train(net.parameters(), loss)
