"""Residuals, exact solutions and fluxes."""


import torch
from programs import fault, train
from torch import nn
from torch.nn import functional as F


@fault("log-of-zero", "log", step=0, also=("zero-times-inf",), ops=("mul",))
def thin_plate_at_its_own_centre(fixed):
    torch.manual_seed(0)
    centre = nn.Parameter(torch.rand(6, 2))
    weight = nn.Parameter(torch.randn(6))
    points = centre.detach().clone()

    def loss(i):
        r2 = (points[:, None] - centre[None]).square().sum(-1)
        if fixed:
            r2 = r2 + 1e-6
        basis = r2 * torch.log(r2)  # ORIGIN
        return (basis @ weight - 1.0).square().mean()

    return None, train([centre, weight], loss)


@fault("zero-times-inf", "pow", "backward", step=2, also=("exp-overflow",), ops=("cosh", "mul"))
def soliton_far_from_its_crest(fixed):
    torch.manual_seed(1)
    speed = nn.Parameter(torch.tensor(1.0))
    x = torch.linspace(-10, 10, 41)

    def loss(i):
        wide = x * (20.0 if i == 2 else 1.0)
        phase = speed.sqrt() / 2 * (wide - speed * 0.1)
        if fixed:
            phase = phase.clamp(-40, 40)
        wave = speed / 2 / torch.cosh(phase) ** 2  # ORIGIN
        return (wave - 0.1).square().mean()

    return None, train([speed], loss)


@fault("div-by-zero", "div", step=1)
def limiter_on_a_flat_profile(fixed):
    torch.manual_seed(2)
    net = nn.Sequential(nn.Linear(1, 16), nn.ReLU(), nn.Linear(16, 1))
    grid = torch.linspace(0, 1, 12)[:, None]

    def loss(i):
        u = net(grid)[:, 0]
        if i >= 1:
            u = F.relu(u - 10.0)
        d = u[1:] - u[:-1]
        ratio = d[:-1] / (d[1:] + 1e-8) if fixed else d[:-1] / d[1:]  # ORIGIN
        slope = (ratio + ratio.abs()) / (1 + ratio.abs())
        return (slope * d[1:]).square().mean() + u.mean()

    return net, train(net.parameters(), loss)


@fault("exp-overflow", "exp", step=0, also=("zero-times-inf",), ops=("mul",))
def scaled_complementary_error_by_hand(fixed):
    torch.manual_seed(3)
    depth = nn.Parameter(torch.tensor([0.5, 2.0, 12.0]))

    def loss(i):
        if fixed:
            value = torch.special.erfcx(depth)
        else:
            value = torch.exp(depth**2) * torch.erfc(depth)  # ORIGIN
        return value.sum()

    return None, train([depth], loss)


@fault("log-of-negative", "log", step=1)
def entropy_variable_of_negative_pressure(fixed):
    torch.manual_seed(4)
    net = nn.Linear(2, 2)
    gen = torch.Generator().manual_seed(5)

    def loss(i):
        x = torch.rand(9, 2, generator=gen)
        rho, energy = x[:, 0] + 0.5, x[:, 1] + 2.0
        speed = torch.ones(9) * (3.0 if i == 1 else 1.0)
        pressure = 0.4 * (energy - 0.5 * rho * speed**2)
        if fixed:
            pressure = pressure.clamp_min(1e-3)
        entropy = torch.log(pressure) - 1.4 * torch.log(rho)  # ORIGIN
        return (net(x)[:, 0] - entropy).square().mean()

    return net, train(net.parameters(), loss)
