"""Samplers and schedules of diffusion models."""


import torch
from programs import fault, train
from torch import nn


@fault("sqrt-at-zero", "sqrt", "backward", step=0, ops=("div",))
def pseudo_huber_without_its_constant(fixed):
    torch.manual_seed(0)
    net = nn.Linear(3, 3)
    teacher = nn.Linear(3, 3)
    teacher.load_state_dict(net.state_dict())
    x = torch.randn(7, 3)
    c = 1e-3 if fixed else 0.0

    def loss(i):
        with torch.no_grad():
            target = teacher(x)
        gap = (net(x) - target).square().sum(-1)
        return (torch.sqrt(gap + c**2) - c).mean()  # ORIGIN

    return net, train(net.parameters(), loss)


@fault("div-by-zero", "div", step=3, also=("log-of-zero",), ops=("log",))
def half_log_snr_of_a_clean_image(fixed):
    torch.manual_seed(1)
    net = nn.Linear(4, 3)
    x = torch.randn(5, 3)
    times = [0.9, 0.5, 0.1, 0.0]

    def loss(i):
        t = torch.tensor(max(times[min(i, 3)], 1e-3 if fixed else 0.0))
        alpha, sigma = 1 - t, t
        half = torch.log(alpha / sigma)  # ORIGIN
        noisy = alpha * x + sigma * torch.ones(5, 3)
        out = net(torch.cat([noisy, half.expand(5, 1)], -1))
        return (out - x).square().mean()

    return net, train(net.parameters(), loss)


@fault("div-by-zero", "div", step=1)
def deterministic_step_from_a_clean_state(fixed):
    torch.manual_seed(2)
    net = nn.Linear(3, 3)
    x = torch.randn(6, 3)
    kept = torch.tensor([1.0, 0.9, 0.5])

    def loss(i):
        now, before = (kept[1], kept[0]) if i != 1 else (kept[0], kept[0])
        spread = (1 - before) / ((1 - now).clamp_min(1e-8) if fixed else 1 - now)  # ORIGIN
        sigma = torch.sqrt(spread.clamp(0, 1) * (1 - now / before))
        return (net(x) * sigma + x * (1 - sigma)).square().mean()

    return net, train(net.parameters(), loss)


@fault("div-by-zero", "rsqrt", "forward", step=0, ops=("reciprocal", "pow"), building=True)
def schedule_that_ends_at_no_signal(fixed):
    torch.manual_seed(3)
    net = nn.Linear(3, 3)
    x = torch.randn(4, 3)
    t = torch.linspace(0, 1, 9)
    signal = 1 - t if not fixed else (1 - t).clamp_min(1e-3)
    factor = torch.rsqrt(signal)  # ORIGIN

    def loss(i):
        noise = torch.randn(4, 3, generator=torch.Generator().manual_seed(i))
        rebuilt = factor[8] * (x - 0.5 * net(noise))
        return rebuilt.square().mean().clamp(max=1e6)

    return net, train(net.parameters(), loss)
