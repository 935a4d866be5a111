"""Scales, roundings and narrow arithmetic."""

import torch
from programs import fault, train
from torch import nn
from torch.nn import functional as F


@fault("div-by-zero", "div", step=1, also=("zero-times-inf",))
def smoothing_of_a_channel_that_is_never_used(fixed):
    torch.manual_seed(0)
    lin = nn.Linear(4, 3)

    def smoothed(x, alpha=0.5):
        act = x.detach().abs().amax(0)
        if fixed:
            act = act.clamp(min=1e-5)
        scale = act**alpha / lin.weight.detach().abs().amax(0) ** (1 - alpha)
        return F.linear(x / scale, lin.weight * scale, lin.bias)  # ORIGIN

    def loss(i):
        x = torch.randn(6, 4, generator=torch.Generator().manual_seed(i))
        if i == 1:
            x[:, 2] = 0
        return smoothed(x).square().mean()

    return lin, train(lin.parameters(), loss)


@fault("dtype-overflow", "mm", step=2, ops=("addmm", "matmul", "bmm", "_to_copy"))
def integer_codes_multiplied_in_half(fixed):
    torch.manual_seed(1)
    weight = nn.Parameter(torch.randn(16, 8))

    class QuantLinear(nn.Module):
        def forward(self, x):
            sx, sw = x.detach().abs().amax() / 127, weight.detach().abs().amax() / 127
            qx = x / sx + (torch.round(x / sx) - x / sx).detach()
            qw = weight / sw + (torch.round(weight / sw) - weight / sw).detach()
            dtype = torch.float32 if fixed else torch.float16
            return (qx.to(dtype) @ qw.to(dtype)).float() * sx * sw  # ORIGIN

    layer = QuantLinear()

    def loss(i):
        gen = torch.Generator().manual_seed(i)
        x = torch.randn(5, 16, generator=gen)
        if i == 2:
            x[0] = 30 * weight.detach()[:, 0].sign()
            x[1:] = x[1:] * 0.1
        return layer(x).square().mean()

    return None, train([weight], loss)


@fault("exp-overflow", "exp", step=2, also=("dtype-overflow",))
def softplus_by_hand_under_autocast(fixed):
    torch.manual_seed(2)
    net = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1))
    opt = torch.optim.SGD(net.parameters(), lr=1e-3)
    scaler = torch.amp.GradScaler("cpu", init_scale=64.0)

    def step(i):
        x = torch.randn(8, 4, generator=torch.Generator().manual_seed(i)) * (150 if i == 2 else 1)
        with torch.autocast("cpu", dtype=torch.float16):
            margin = net(x)
            loss = F.softplus(margin).mean() if fixed else torch.log(1 + torch.exp(margin)).mean()  # ORIGIN
        opt.zero_grad()
        scaler.scale(loss).backward()
        scaler.step(opt)
        scaler.update()
        return loss

    return net, step


@fault("log-of-zero", "log2", step=1, ops=("div",), also=("div-by-zero",))
def ulp_of_a_pruned_weight(fixed):
    """Stochastic rounding by hand to three bits: the exponent of a weight that is zero."""
    torch.manual_seed(3)
    net = nn.Linear(5, 2)
    gen = torch.Generator().manual_seed(4)

    def rounded(w):
        magnitude = w.detach().abs()
        if fixed:
            magnitude = magnitude.clamp(min=2.0**-20)
        ulp = torch.exp2(torch.floor(torch.log2(magnitude)) - 3)  # ALSO
        grid = torch.floor(w.detach() / ulp + torch.rand(w.shape, generator=gen)) * ulp  # ORIGIN
        return w + (grid - w).detach()

    def loss(i):
        if i == 1:
            with torch.no_grad():
                net.weight[0, :2] = 0
        x = torch.randn(6, 5, generator=gen)
        return (F.linear(x, rounded(net.weight), net.bias) - 1).square().mean()

    return net, train(net.parameters(), loss)


@fault("div-by-zero", "div", step=2)
def noise_of_a_layer_with_no_bits(fixed):
    torch.manual_seed(5)
    net = nn.Linear(4, 2)
    bits = nn.Parameter(torch.tensor(0.9))
    gen = torch.Generator().manual_seed(6)

    def pseudo_quantised(w):
        b = torch.relu(bits) if not fixed else bits.clamp(min=1.0)
        spread = w.max() - w.min()
        delta = spread / (2**b - 1)  # ORIGIN
        return w + delta / 2 * (2 * torch.rand(w.shape, generator=gen) - 1)

    opt = torch.optim.SGD([{"params": net.parameters()}, {"params": [bits], "lr": 0.6}], lr=0.1)

    def step(i):
        x = torch.randn(8, 4, generator=gen)
        opt.zero_grad()
        loss = 1e-3 * F.linear(x, pseudo_quantised(net.weight)).square().mean() + bits
        loss.backward()
        opt.step()
        return loss

    return net, step
