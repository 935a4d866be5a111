"""Optimal transport."""

import torch
from programs import fault, healthy, train
from torch import nn


def points(seed, n=8, d=2):
    return torch.rand(n, d, generator=torch.Generator().manual_seed(seed))


@fault("sqrt-at-zero", "div", "backward", step=1, ops=("sqrt", "mul"))
def distance_of_equal_quantiles(fixed):
    x = nn.Parameter(points(0)[:, 0].clone())

    def loss(i):
        y = points(1)[:, 0]
        if i == 1:
            y = x.detach().clone() - 0.0
        gap = (x.sort().values - y.sort().values).square().sum()
        return torch.sqrt(gap + 1e-8) if fixed else torch.sqrt(gap)  # ORIGIN

    return None, train([x], loss)


@fault(
    "degenerate-matrix",
    "div",
    "backward",
    step=0,
    steps=1,
    also=("div-by-zero",),
    ops=("linalg_eigh", "_linalg_eigh", "mul", "reciprocal", "pow"),
)
def root_of_an_isotropic_covariance(fixed):
    torch.manual_seed(2)
    scale = nn.Parameter(torch.tensor(1.0))
    other = torch.diag(torch.tensor([1.0, 2.0, 3.0]))

    def loss(i):
        covariance = scale * torch.eye(3)
        if fixed:
            covariance = covariance + torch.diag(torch.tensor([0.0, 0.01, 0.02]))
        values, vectors = torch.linalg.eigh(covariance)  # ORIGIN
        root = vectors @ torch.diag(values.sqrt()) @ vectors.T
        inner = root @ other @ root
        return (covariance + other).trace() - 2 * inner.trace().sqrt() + (vectors[0] * other[0]).sum()

    return None, train([scale], loss)


@fault("pow-fraction-at-zero", "pow", "backward", step=2, ops=("mul", "div"))
def geometric_barycentre_with_an_empty_bin(fixed):
    torch.manual_seed(3)
    net = nn.Linear(5, 6)
    x = torch.randn(3, 5)

    def loss(i):
        mass = torch.relu(net(x) + (1.0 if i < 2 else -0.2))
        product = mass.prod(0)
        if fixed:
            product = product + 1e-4
        centre = product ** (1 / 3)  # ORIGIN
        return (centre - 0.3).square().sum()

    return net, train(net.parameters(), loss)


@fault("log-of-zero", "log", step=0, also=("zero-times-inf",))
def entropy_of_a_sparse_plan(fixed):
    torch.manual_seed(4)
    potential = nn.Parameter(torch.zeros(8))

    def loss(i):
        cost = torch.cdist(points(5), points(6)) * 400
        plan = torch.softmax((potential[:, None] - cost), -1) / 8
        if fixed:
            return (plan * cost).sum() - torch.special.entr(plan).sum().detach() + potential.square().sum()
        return (plan * cost).sum() + (plan * torch.log(plan)).sum()  # ORIGIN

    return None, train([potential], loss)


@fault("dtype-overflow", "pow", step=2, ops=("mul", "sum", "square", "_to_copy"))
def cost_matrix_in_half(fixed):
    torch.manual_seed(7)
    net = nn.Linear(2, 2)

    def loss(i):
        x, y = net(points(8)) * (1 if i < 2 else 900), points(9)
        gap = x[:, None] - y[None]
        cost = gap.square() if fixed else gap.half().square()  # ORIGIN
        plan = torch.softmax(-cost.float().sum(-1), -1)
        return (plan.detach() * cost.float().sum(-1)).sum() * 1e-4

    return net, train(net.parameters(), loss, 1e-9)


@fault("div-by-zero", "div", step=4)
def soft_sort_at_temperature_zero(fixed):
    torch.manual_seed(10)
    net = nn.Linear(3, 1)
    x = torch.randn(6, 3)
    temperature = torch.tensor(1.0)

    def loss(i):
        temperature.sub_(0.25 if i else 0.0)
        if fixed:
            temperature.clamp_(min=0.1)
        s = net(x).squeeze(-1)
        order = torch.softmax(-(s.sort().values[:, None] - s[None]).abs() / temperature, -1)  # ORIGIN
        return (order @ x).square().mean()

    return net, train(net.parameters(), loss)


@fault("log-of-zero", "log", step=1, also=("inf-minus-inf",))
def log_marginal_of_an_absent_class(fixed):
    torch.manual_seed(11)
    net = nn.Linear(2, 4)

    def loss(i):
        mass = torch.tensor([0.4, 0.3, 0.3, 0.0]) if i >= 1 else torch.full((4,), 0.25)
        log_b = torch.log(mass + 1e-6 * fixed)  # ORIGIN
        scores = net(points(12))
        f, g = torch.zeros(8), torch.zeros(4)
        for _ in range(5):
            f = -torch.logsumexp(scores + g, 1) - torch.log(torch.tensor(8.0))
            g = log_b - torch.logsumexp(scores + f[:, None], 0)
        return (f.mean() + (mass * g).sum()).square()

    return net, train(net.parameters(), loss)


@healthy("a plan whose far entries underflow to zero, marginals being positive")
def sharp_plan(fixed=False):
    x = nn.Parameter(points(13).clone())

    def loss(i):
        cost = torch.cdist(x, points(13) + 0.01).square() / 1e-4
        plan = torch.softmax(-cost, -1)
        return (plan.detach() * cost).sum() * 1e-4

    return None, train([x], loss)


@healthy("zero mass in a histogram, whose logarithm is taken by xlogy")
def empty_bins(fixed=False):
    torch.manual_seed(14)
    net = nn.Linear(3, 5)
    x = torch.randn(4, 3)
    target = torch.tensor([0.5, 0.5, 0.0, 0.0, 0.0])

    def loss(i):
        log = net(x).log_softmax(-1)
        return (torch.special.xlogy(target, target) - target * log).sum(-1).mean()

    return net, train(net.parameters(), loss)
