"""Diffusion, score matching, flow matching."""

import torch
from programs import fault, healthy, train
from torch import nn


def denoiser(seed, extra=1):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(4 + extra, 24), nn.SiLU(), nn.Linear(24, 4))


def batch(gen, n=16):
    return torch.randn(n, 4, generator=gen), torch.rand(n, 1, generator=gen)


@fault("log-of-zero", "log", step=2)
def noise_label_of_clean_sample(fixed):
    net, gen = denoiser(0), torch.Generator().manual_seed(1)

    def loss(i):
        x, t = batch(gen)
        sigma = 80 * t**7
        if i == 2:
            sigma[5] = 0.0
        label = torch.log(sigma.clamp_min(2e-3) if fixed else sigma) / 4  # ORIGIN
        return (net(torch.cat([x / (1 + sigma), label], -1)) - x).square().mean()

    return net, train(net.parameters(), loss)


@fault("log-of-zero", "log", "init", step=0, also=("poisoned-buffer",), building=True)
def log_of_the_first_posterior_variance(fixed):
    net, gen = denoiser(2), torch.Generator().manual_seed(3)
    alpha = torch.cumprod(1 - torch.linspace(1e-4, 0.02, 10), 0)
    before = torch.cat([torch.ones(1), alpha[:-1]])
    variance = (1 - before) / (1 - alpha) * torch.linspace(1e-4, 0.02, 10)
    if fixed:
        variance[0] = variance[1]
    net.register_buffer("log_variance", torch.log(variance))  # ORIGIN

    def loss(i):
        x, _ = batch(gen)
        t = torch.arange(16) % 10
        mean = net(torch.cat([x, t[:, None] / 10], -1))
        logvar = net.log_variance[t][:, None]
        return 0.5 * (logvar + (mean - x).square() * torch.exp(-logvar) * 1e-4).mean()

    return net, train(net.parameters(), loss)


@fault("div-by-zero", "div", step=1, ops=("reciprocal",))
def score_at_time_zero(fixed):
    net, gen = denoiser(4), torch.Generator().manual_seed(5)

    def loss(i):
        x, t = batch(gen)
        t = t.clamp_min(1e-3) if fixed else t * (t > 0.1) if i == 1 else t.clamp_min(0.1)
        std = torch.sqrt((25.0 ** (2 * t) - 1) / (2 * 3.2189))
        z = torch.randn(16, 4, generator=gen)
        score = net(torch.cat([x + std * z, t], -1))
        return (score + z / std).square().mean()  # ORIGIN

    return net, train(net.parameters(), loss, 1e-6)


@fault("div-by-zero", "div", "init", step=0, also=("poisoned-buffer",), building=True)
def karras_schedule_of_one_step(fixed):
    net, gen = denoiser(6), torch.Generator().manual_seed(7)
    n = 2 if fixed else 1
    ramp = torch.arange(n) / torch.tensor(n - 1.0)  # ORIGIN
    net.register_buffer("sigmas", (80 ** (1 / 7) + ramp * (0.002 ** (1 / 7) - 80 ** (1 / 7))) ** 7)

    def loss(i):
        x, _ = batch(gen)
        sigma = net.sigmas[i % n].expand(16, 1)
        return (net(torch.cat([x / (1 + sigma), sigma.sqrt()], -1)) - x).square().mean()

    return net, train(net.parameters(), loss)


@fault("div-by-zero", "reciprocal", step=1, also=("dtype-underflow", "eps-underflow"), ops=("div",))
def flow_weight_of_late_time_in_half(fixed):
    net, gen = denoiser(8), torch.Generator().manual_seed(9)

    def loss(i):
        x, _ = batch(gen)
        raw = torch.linspace(-3, 3 if i < 1 else 9, 16)[:, None]
        t = torch.sigmoid(raw) if fixed else torch.sigmoid(raw.half())
        weight = 1 / (1 - t)  # ORIGIN
        return (weight.float() * (net(torch.cat([x, t.float()], -1)) - x).square()).mean()

    return net, train(net.parameters(), loss, 1e-6)


@fault("div-by-zero", "div", step=0, also=("std-of-constant",))
def guidance_rescaled_by_zero_spread(fixed):
    net, gen = denoiser(10), torch.Generator().manual_seed(11)
    nn.init.zeros_(net[-1].weight)
    nn.init.zeros_(net[-1].bias)

    def loss(i):
        x, t = batch(gen)
        cond, plain = net(torch.cat([x, t], -1)), net(torch.cat([x, 0 * t], -1))
        guided = plain + 3 * (cond - plain)
        ratio = cond.detach().std(-1, keepdim=True) / (guided.detach().std(-1, keepdim=True) + 1e-5 * fixed)  # ORIGIN
        guided = guided * (0.7 * ratio + 0.3) if fixed else guided * ratio
        return (guided - x).square().mean()

    return net, train(net.parameters(), loss)


@fault("exp-overflow", "exp", step=2, second=("learning-rate",))
def learned_log_variance_thrown_by_one_update(fixed):
    torch.manual_seed(12)
    net = nn.Sequential(nn.Linear(5, 24), nn.SiLU(), nn.Linear(24, 8))
    gen = torch.Generator().manual_seed(13)
    opt = torch.optim.SGD(net.parameters(), lr=1e-3 if fixed else 20.0)

    def step(i):
        x, t = batch(gen)
        mean, logvar = net(torch.cat([x, t], -1)).chunk(2, -1)
        loss = ((x - mean).square() * torch.exp(-logvar.clamp_max(6)) * 0.5 + 0.5 * logvar).mean()  # ORIGIN
        opt.zero_grad()
        loss.backward()
        opt.step()
        return loss

    return net, step


@healthy("the zero-initialised output layer holds back the body for one step only")
def zero_initialised_head(fixed=False):
    net, gen = denoiser(14), torch.Generator().manual_seed(15)
    nn.init.zeros_(net[-1].weight)

    def loss(i):
        x, t = batch(gen)
        return (net(torch.cat([x, t], -1)) - x).square().mean()

    return net, train(net.parameters(), loss, 0.1)


@healthy("an average of weights in float32 with a decay of 0.999 moves little, and does move")
def averaged_weights(fixed=False):
    net, gen = denoiser(16), torch.Generator().manual_seed(17)
    shadow = [p.detach().clone() for p in net.parameters()]

    def loss(i):
        x, t = batch(gen)
        with torch.no_grad():
            for s, p in zip(shadow, net.parameters(), strict=True):
                s.mul_(0.999).add_(p, alpha=0.001)
        return (net(torch.cat([x, t], -1)) - x).square().mean()

    return net, train(net.parameters(), loss, 0.1)


@healthy("the infinite signal-to-noise ratio of a clean sample is clipped, and the weight is finite")
def clipped_snr(fixed=False):
    net, gen = denoiser(18), torch.Generator().manual_seed(19)

    def loss(i):
        x, t = batch(gen)
        alpha = 1 - t
        alpha[0] = 1.0
        snr = alpha / (1 - alpha)
        weight = snr.clamp(max=5.0)
        return (weight * (net(torch.cat([x, t], -1)) - x).square()).mean()

    return net, train(net.parameters(), loss)
