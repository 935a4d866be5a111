"""Curved spaces."""


import torch
from programs import fault, train
from torch import nn
from torch.nn import functional as F


def lift(x):
    return torch.cat([torch.sqrt(1 + x.square().sum(-1, keepdim=True)), x], -1)


@fault("inverse-function-at-edge", "acosh", "backward", step=1, ops=("div", "mul", "rsqrt"))
def distance_of_a_point_to_itself(fixed):
    torch.manual_seed(0)
    points = nn.Parameter(torch.zeros(4, 2))
    with torch.no_grad():
        points[1:] = torch.randn(3, 2)
    other = torch.randn(4, 2)

    def loss(i):
        x = lift(points)
        y = lift(other if i != 1 else points.detach() * 0)
        inner = x[:, 0] * y[:, 0] - (x[:, 1:] * y[:, 1:]).sum(-1)
        if fixed:
            inner = inner.clamp_min(1 + 1e-5)
        return torch.acosh(inner).mean()  # ORIGIN

    return None, train([points], loss, lr=0.0 + 1e-12)


@fault("exp-overflow", "sinh", step=2, ops=("cosh",))
def geodesic_of_a_long_tangent(fixed):
    torch.manual_seed(1)
    net = nn.Linear(3, 2)
    gen = torch.Generator().manual_seed(2)

    def loss(i):
        v = net(torch.randn(6, 3, generator=gen) * (900.0 if i == 2 else 1.0))
        r = (v.square().sum(-1, keepdim=True) + 1e-12).sqrt()
        if fixed:
            r = r.clamp(max=20.0)
        return torch.log1p(torch.sinh(r) / r * v.abs()).mean()  # ORIGIN

    return net, train(net.parameters(), loss)


@fault("div-by-zero", "div", step=1)
def mobius_sum_of_antipodes(fixed):
    torch.manual_seed(3)
    x = nn.Parameter(torch.tensor([[0.3, 0.2], [1.0, 0.0]]))

    def loss(i):
        y = torch.tensor([[0.1, 0.2], [-1.0, 0.0]]) * (1.0 if i == 1 else 0.5)
        if fixed:
            y = y * 0.9
        dot = (x * y).sum(-1, keepdim=True)
        xx, yy = x.square().sum(-1, keepdim=True), y.square().sum(-1, keepdim=True)
        total = (1 + 2 * dot + yy) * x + (1 - xx) * y
        return (total / (1 + 2 * dot + xx * yy)).square().mean()  # ORIGIN

    return None, train([x], loss, lr=0.0)


@fault("inverse-function-domain", "acos", step=0)
def angle_of_rounded_unit_vectors(fixed):
    torch.manual_seed(4)
    net = nn.Linear(3, 7)

    def loss(i):
        x = torch.randn(64, 3, generator=torch.Generator().manual_seed(i))
        z = F.normalize(net(x), dim=-1) * (1 + 2e-7)
        cosine = (z * F.normalize(z.detach() + (0.1 if fixed else 0.0), dim=-1)).sum(-1)
        if fixed:
            cosine = cosine.clamp(-1 + 1e-6, 1 - 1e-6)
        return torch.acos(cosine).mean()  # ORIGIN

    return net, train(net.parameters(), loss)
