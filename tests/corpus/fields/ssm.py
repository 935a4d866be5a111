"""State-space models and linear recurrences."""

import torch
from programs import fault, healthy, train
from torch import nn


@fault("div-by-zero", "div", step=0)
def hold_of_an_integrator(fixed):
    torch.manual_seed(0)
    decay = nn.Parameter(torch.tensor([-1.0, -0.5, 0.0]))
    b, x = torch.randn(3), torch.randn(8, 3)

    def loss(i):
        step = 0.1
        held = torch.expm1(decay * step)
        gain = step * torch.ones(3) if fixed else held / decay  # ORIGIN
        return ((1 + held) * x + gain * b).square().mean()

    return None, train([decay], loss)


@fault("exp-overflow", "exp", step=0)
def kernel_of_an_unstable_pole(fixed):
    torch.manual_seed(1)
    pole = nn.Parameter(torch.tensor([-0.5, 0.4, -0.1]))
    x = torch.randn(4, 300)

    def loss(i):
        rate = -torch.nn.functional.softplus(pole) if fixed else pole
        kernel = torch.exp(rate[:, None] * torch.arange(300.0)).sum(0)  # ORIGIN
        return (torch.fft.irfft(torch.fft.rfft(x, 600) * torch.fft.rfft(kernel, 600)) ** 2).mean()

    return None, train([pole], loss, 1e-3)


@fault("log-of-zero", "log", "init", step=0, also=("poisoned-parameter",), building=True)
def inverse_softplus_of_zero_step(fixed):
    torch.manual_seed(2)
    dt = torch.linspace(1e-3 if fixed else 0.0, 0.1, 4)
    bias = nn.Parameter(dt + torch.log(-torch.expm1(-dt)))  # ORIGIN
    x = torch.randn(8, 4)

    def loss(i):
        delta = nn.functional.softplus(x + bias)
        return (torch.exp(-delta) * x + delta * bias.tanh()).square().sum()

    return None, train([bias], loss)


@fault("norm-at-zero", "div", step=2, also=("div-by-zero",))
def delta_rule_key_of_padding(fixed):
    torch.manual_seed(3)
    key = nn.Linear(6, 4, bias=False)
    tokens = torch.randn(5, 6)

    def loss(i):
        x = tokens.clone()
        if i >= 2:
            x[3:] = 0
        k = key(x)
        k = nn.functional.normalize(k, dim=-1) if fixed else k / k.norm(dim=-1, keepdim=True)  # ORIGIN
        state = torch.zeros(4, 6)
        for t in range(5):
            state = state + k[t][:, None] * (x[t] - k[t] @ state)
        return state.square().sum()

    return key, train(key.parameters(), loss)


@fault("exp-overflow", "exp", step=3)
def unnormalised_time_mixing(fixed):
    torch.manual_seed(4)
    key, value = nn.Linear(4, 4), nn.Linear(4, 4)
    gen = torch.Generator().manual_seed(5)

    def loss(i):
        x = torch.randn(12, 4, generator=gen) * (1 if i != 3 else 400)
        k = key(x)
        weight = torch.exp(k - k.amax(0) if fixed else k)  # ORIGIN
        out = (weight * value(x)).cumsum(0) / (weight.cumsum(0) + 1e-9)
        return out.tanh().square().mean()

    return nn.ModuleList([key, value]), train([*key.parameters(), *value.parameters()], loss)


@fault("div-by-zero", "div", step=0, also=("dtype-underflow",))
def decay_divided_out_in_half(fixed):
    torch.manual_seed(6)
    gate = nn.Linear(4, 4)
    x = torch.randn(64, 4)

    def loss(i):
        a = torch.sigmoid(gate(x)) if fixed else torch.sigmoid(gate(x)).half()
        log = torch.log(a.float()).cumsum(0).to(a.dtype)
        total = torch.exp(log)
        if fixed:
            return (total * x.cumsum(0)).square().mean()
        scan = total * (x.half() / total).cumsum(0)  # ORIGIN
        return scan.float().square().mean()

    return gate, train(gate.parameters(), loss)


@fault("log-of-zero", "log", step=1, also=("inverse-function-at-edge",))
def radius_of_a_marginally_stable_mode(fixed):
    torch.manual_seed(7)
    radius = nn.Parameter(torch.tensor([0.5, 0.9, 0.99]))
    x = torch.randn(8, 3)

    def loss(i):
        shape = radius.detach().clone()
        r = radius if i < 1 else radius + (1 - shape) * torch.tensor([0.0, 0.0, 1.0])
        nu = torch.log(-torch.log(r.clamp(max=0.999) if fixed else r))  # ORIGIN
        return (torch.exp(-nu)[None] * x).square().mean()

    return None, train([radius], loss)


@healthy("a state that decays to zero within the sequence: the first inputs no longer matter")
def forgetful_state(fixed=False):
    torch.manual_seed(8)
    rate = nn.Parameter(torch.tensor([-40.0, -1.0]))
    x = torch.randn(4, 60, 2)

    def loss(i):
        kernel = torch.exp(rate[:, None] * torch.arange(60.0)).T.flip(0)
        return ((kernel * x).sum(1) - 1).square().mean()

    return None, train([rate], loss)


@healthy("a counter of tokens in float32 that is far from its limit, and a half cache that is rewritten")
def cached_convolution(fixed=False):
    net = nn.Linear(4, 4)
    cache, seen = torch.zeros(3, 4).half(), torch.zeros(())

    def loss(i):
        seen.add_(1)
        cache.copy_(cache.roll(1, 0))
        cache[0] = torch.full((4,), float(i % 3)).half()
        return (net(cache.float()).mean() - 1 / (1 + seen)).square()

    return net, train(net.parameters(), loss)
