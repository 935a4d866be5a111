"""Balls, cones and half-spaces of negative curvature."""

import torch
from programs import fault, train
from torch import nn


@fault("div-by-zero", "div", step=1, also=("log-of-zero",))
def horosphere_through_its_ideal_point(fixed):
    torch.manual_seed(0)
    points = nn.Embedding(4, 2)
    points.weight.data.mul_(0.1)
    ideal = torch.tensor([1.0, 0.0])

    def busemann(x):
        gap = (ideal - x).square().sum(-1)
        level = (1 - x.square().sum(-1)).clamp(min=1e-5)
        return torch.log((gap + 1e-6 if fixed else gap) / level), level / (gap + 1e-6 if fixed else gap)  # ORIGIN

    def loss(i):
        x = points(torch.tensor([0, 1, 2]))
        if i == 1:
            x = torch.cat([x, ideal[None]])
        return busemann(x)[1].mean()

    return points, train(points.parameters(), loss)


@fault("sqrt-of-negative", "sqrt", step=2)
def klein_point_outside_the_ball(fixed):
    torch.manual_seed(1)
    encoder = nn.Linear(3, 2)

    def klein_to_poincare(x):
        square = (x * x).sum(-1, keepdim=True)
        if fixed:
            x = x / square.sqrt().clamp(min=1.0) * 0.99
            square = (x * x).sum(-1, keepdim=True)
        return x / (1 + torch.sqrt(1 - square))  # ORIGIN

    def loss(i):
        gen = torch.Generator().manual_seed(i)
        x = torch.randn(6, 3, generator=gen) * 0.1 + 0.01
        x[0] = 0.1 + (30.0 if i == 2 else 0)
        return klein_to_poincare(0.3 * encoder(x)).square().sum(-1).mean()

    return encoder, train(encoder.parameters(), loss)


@fault("div-by-zero", "div", step=0, also=("norm-at-zero",))
def hyperplane_whose_normal_begins_at_zero(fixed):
    torch.manual_seed(2)

    class HyperbolicLogits(nn.Module):
        def __init__(self, dim, classes):
            super().__init__()
            self.p = nn.Parameter(0.01 * torch.randn(classes, dim))
            self.a = nn.Parameter((0.01 if fixed else 0.0) * torch.randn(classes, dim))

        def forward(self, x):
            diff = x[:, None] - self.p
            length = self.a.norm(dim=-1)
            inner = torch.einsum("bkd,kd->bk", diff, self.a)
            ball = (1 - diff.square().sum(-1)).clamp(min=1e-4)
            return length * torch.asinh(2 * inner / (ball * length))  # ORIGIN

    head, x = HyperbolicLogits(3, 4), 0.2 * torch.randn(6, 3)
    y = torch.tensor([0, 1, 2, 3, 0, 1])
    return head, train(head.parameters(), lambda i: nn.functional.cross_entropy(head(x), y))


@fault("inverse-function-domain", "asin", step=2)
def cone_of_a_root_near_the_origin(fixed):
    torch.manual_seed(3)
    table = nn.Embedding(6, 3)
    with torch.no_grad():
        table.weight.copy_(0.5 * nn.functional.normalize(table.weight, dim=-1))

    def aperture(x, k=0.1):
        r = x.norm(dim=-1)
        ratio = k * (1 - r * r) / r
        return torch.asin(ratio.clamp(max=0.999) if fixed else ratio)  # ORIGIN

    def loss(i):
        ids = torch.tensor([0, 1, 2, 3])
        x = table(ids) * torch.where(ids == i, 0.1, 1.0)[:, None] if i == 2 else table(ids)
        return aperture(x).mean()

    return table, train(table.parameters(), loss)
