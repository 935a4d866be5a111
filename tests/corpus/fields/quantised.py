"""Quantised weights and activations."""


import torch
from programs import fault, train
from torch import nn
from torch.nn import functional as F


@fault("div-by-zero", "div", step=1, also=("log-of-zero",), ops=("log2",))
def power_of_two_scale_of_a_dead_block(fixed):
    torch.manual_seed(0)
    net = nn.Linear(8, 8)
    gen = torch.Generator().manual_seed(1)

    def loss(i):
        x = torch.randn(6, 8, generator=gen)
        y = F.relu(net(x) - (50.0 if i == 1 else 0.0))
        top = y.detach().abs().amax(-1, keepdim=True)
        if fixed:
            top = top.clamp_min(1e-6)
        exponent = torch.ceil(torch.log2(top))  # ALSO
        scale = torch.exp2(exponent - 7)
        return (torch.round(y / scale) * scale - y).square().mean() + y.mean()  # ORIGIN

    return net, train(net.parameters(), loss)


@fault("div-by-zero", "div", step=2)
def zero_point_of_a_constant_activation(fixed):
    torch.manual_seed(2)
    net = nn.Linear(4, 4)
    gen = torch.Generator().manual_seed(3)

    def loss(i):
        y = torch.tanh(net(torch.randn(5, 4, generator=gen)))
        if i == 2:
            y = y * 0 + 0.7
        low, high = y.detach().min(), y.detach().max()
        scale = (high - low) / 255
        if fixed:
            scale = scale.clamp_min(1e-8)
        zero = torch.round(-low / scale)  # ORIGIN
        back = (y / scale + zero).clamp(0, 255)
        return ((back - zero) * scale - 0.1).square().mean()

    return net, train(net.parameters(), loss)


@fault("empty-reduction", "mean", step=1)
def ternary_scale_without_survivors(fixed):
    torch.manual_seed(4)
    weight = nn.Parameter(torch.randn(6, 6))
    x = torch.randn(5, 6)

    def loss(i):
        threshold = weight.detach().abs().mean() * (0.7 if i != 1 else 50.0)
        kept = weight.abs() > threshold
        if fixed:
            alpha = (weight.abs() * kept).sum() / kept.sum().clamp_min(1)
        else:
            alpha = weight.abs()[kept].mean()  # ORIGIN
        return (x @ (alpha * kept * weight.sign())).square().mean() + weight.square().mean()

    return None, train([weight], loss)


@fault("dtype-overflow", "_to_copy", step=1, ops=("to", "copy_"))
def activations_cast_to_eight_bits(fixed):
    torch.manual_seed(5)
    net = nn.Linear(4, 4)
    gen = torch.Generator().manual_seed(6)

    def loss(i):
        y = net(torch.randn(6, 4, generator=gen) * (1e7 if i == 1 else 1.0))
        scale = y.detach().abs().max() / 448 if fixed else torch.tensor(1.0)
        small = (y / scale).clamp(-448, 448) if fixed else y / scale
        low = small.to(torch.float8_e5m2).to(torch.float32) * scale  # ORIGIN
        return (y + (low - y).detach()).square().mean()

    return net, train(net.parameters(), loss)


@fault("dead-gradient", "sign", "backward", step=0, steps=4, ops=("gt", "where"))
def binary_weights_without_an_estimator(fixed):
    torch.manual_seed(7)
    weight = nn.Parameter(torch.randn(4, 6))
    bias = nn.Parameter(torch.zeros(4))
    x = torch.randn(9, 6)

    def loss(i):
        hard = torch.sign(weight)  # ORIGIN
        if fixed:
            hard = weight + (hard - weight).detach()
        return (x @ hard.T + bias - 1).square().mean()

    return None, train([weight, bias], loss)
