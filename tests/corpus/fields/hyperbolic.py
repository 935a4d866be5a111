"""Hyperbolic geometry."""

import torch
from programs import fault, healthy, train
from torch import nn


@fault("norm-at-zero", "div", step=0, also=("div-by-zero",))
def exponential_map_of_the_origin(fixed):
    torch.manual_seed(0)
    table = nn.Embedding(6, 3, padding_idx=0)

    def loss(i):
        v = table(torch.arange(6))
        size = v.norm(dim=-1, keepdim=True)
        if fixed:
            size = size.clamp_min(1e-6)
        y = torch.tanh(size) * v / size  # ORIGIN
        return (y - 0.1).square().sum()

    return table, train(table.parameters(), loss)


@fault("inverse-function-at-edge", "atanh", step=3)
def logarithm_of_a_point_on_the_rim(fixed):
    torch.manual_seed(1)
    net = nn.Linear(4, 3)
    x = torch.randn(10, 4)

    def loss(i):
        v = net(x * (1 if i < 3 else 60))
        size = v.norm(dim=-1, keepdim=True)
        y = torch.tanh(size) * v / size
        r = y.norm(dim=-1, keepdim=True).clamp(max=1 - 1e-5 if fixed else 1.0)
        back = torch.atanh(r) * y / r  # ORIGIN
        return (back.sum(-1) - 1).square().mean()

    return net, train(net.parameters(), loss, 1e-6)


@fault("div-by-zero", "div", step=2, ops=("reciprocal",))
def conformal_factor_on_the_rim(fixed):
    point = nn.Parameter(torch.tensor([[0.3, 0.4], [0.6, 0.0]]))
    direction = torch.tensor([[0.0, 0.0], [1.0, 0.0]])

    def loss(i):
        p = point * (1 if i < 2 else torch.tensor([[1.0, 1.0], [0.0, 0.0]])) + (direction if i >= 2 else 0.0)
        gap = 1 - p.square().sum(-1)
        factor = 2 / (gap.clamp_min(1e-3) if fixed else gap)  # ORIGIN
        return (factor * p.square().sum(-1)).mean()

    return None, train([point], loss, 1e-6)


@fault("sqrt-of-negative", "sqrt", step=2, second=("learning-rate",))
def curvature_that_changes_its_sign(fixed):
    torch.manual_seed(2)
    curvature = nn.Parameter(torch.tensor(0.5))
    v = torch.rand(6, 3) * 0.3
    opt = torch.optim.SGD([curvature], lr=0.02 if fixed else 0.9)

    def step(i):
        c = curvature
        size = v.norm(dim=-1)
        root = torch.sqrt(c)  # ORIGIN
        radius = torch.tanh(root * size) / root
        loss = (radius - 0.5 * size).square().sum() + 0.3 * c
        opt.zero_grad()
        loss.backward()
        opt.step()
        return loss

    step.parameters = {"curvature": curvature}
    return None, step


@fault("div-by-zero", "div", step=0)
def midpoint_of_origins(fixed):
    torch.manual_seed(3)
    net = nn.Linear(3, 2, bias=False)
    x = torch.randn(5, 4, 3)
    x[2] = 0.0

    def loss(i):
        p = torch.tanh(net(x)) * 0.5
        gamma = 1 / (1 - p.square().sum(-1, keepdim=True))
        weight = (gamma - 1).sum(1) + 1e-6 * fixed
        middle = ((gamma - 1) * p).sum(1) / weight  # ORIGIN
        return (middle - 0.1).square().mean()

    return net, train(net.parameters(), loss)


@fault("dtype-overflow", "cosh", step=2, also=("exp-overflow",), ops=("sinh", "mul", "exp"))
def lift_to_the_hyperboloid_in_half(fixed):
    torch.manual_seed(4)
    net = nn.Linear(4, 3)
    gen = torch.Generator().manual_seed(5)

    def loss(i):
        v = net(torch.randn(8, 4, generator=gen)) * (1 if i < 2 else 12)
        r = v.norm(dim=-1, keepdim=True)
        time = torch.cosh(r if fixed else r.half())  # ORIGIN
        return torch.log(time.float() + 1).mean()

    return net, train(net.parameters(), loss, 1e-6)


@healthy("points are kept inside of the ball, and their distance to themselves is left out")
def guarded_ball(fixed=False):
    torch.manual_seed(6)
    raw = nn.Parameter(torch.randn(6, 2))

    def loss(i):
        p = raw / (1 + raw.norm(dim=-1, keepdim=True))
        n, m = torch.triu_indices(6, 6, 1)
        gap = (p[n] - p[m]).square().sum(-1)
        argument = 1 + 2 * gap / ((1 - p[n].square().sum(-1)) * (1 - p[m].square().sum(-1)))
        return (torch.acosh(argument) - 1).square().mean()

    return None, train([raw], loss)


@healthy("the distance of far points is large in float32, and nothing overflows")
def far_points(fixed=False):
    torch.manual_seed(7)
    v = nn.Parameter(torch.randn(5, 2))
    return None, train([v], lambda i: torch.log(torch.cosh(30 * v.norm(dim=-1))).mean())
