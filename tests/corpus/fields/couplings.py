"""Transport plans and divergences."""


import torch
from programs import fault, train
from torch import nn


@fault("div-by-zero", "div", step=0, also=("dtype-underflow",), ops=("exp", "reciprocal"))
def scaling_with_an_underflowed_kernel(fixed):
    torch.manual_seed(0)
    x = nn.Parameter(torch.randn(5, 2))
    y = torch.randn(6, 2) + 20.0

    def loss(i):
        cost = torch.cdist(x, y).square()
        if fixed:
            cost = cost / cost.detach().max() * 5
        kernel = torch.exp(-cost)  # ALSO
        v = torch.ones(6)
        for _ in range(3):
            u = 0.2 / (kernel @ v)  # ORIGIN
            v = (1 / 6) / (kernel.T @ u)
        return (u[:, None] * kernel * v * cost).sum()

    return None, train([x], loss)


@fault("sqrt-of-negative", "sqrt", step=1)
def root_of_a_rounded_covariance(fixed):
    torch.manual_seed(1)
    net = nn.Linear(4, 4)
    gen = torch.Generator().manual_seed(2)

    def loss(i):
        x = torch.randn(30, 4, generator=gen)
        if i == 1:
            x = x[:, :1].repeat(1, 4) * 100
        cov = x.T @ x / 30 - (0 if i != 1 else 1e-3) * torch.eye(4)
        values, vectors = torch.linalg.eigh(cov)
        if fixed:
            values = values.clamp_min(0.0)
        root = vectors * torch.sqrt(values) @ vectors.T  # ORIGIN
        return (net(root) * 1e-3).square().mean()

    return net, train(net.parameters(), loss)


@fault("norm-at-zero", "div", step=1, also=("div-by-zero",))
def projection_along_no_direction(fixed):
    torch.manual_seed(3)
    net = nn.Linear(2, 2)
    gen = torch.Generator().manual_seed(4)

    def loss(i):
        x, y = net(torch.randn(16, 2, generator=gen)), torch.randn(16, 2, generator=gen)
        way = torch.randn(8, 2, generator=gen)
        if i == 1:
            way[2] = 0.0
        length = way.norm(dim=-1, keepdim=True)
        way = way / (length + 1e-12) if fixed else way / length  # ORIGIN
        a, b = (x @ way.T).sort(0).values, (y @ way.T).sort(0).values
        return (a - b).square().mean()

    return net, train(net.parameters(), loss)


@fault("div-by-zero", "div", step=0)
def divergence_to_a_plan_without_support(fixed):
    torch.manual_seed(5)
    logits = nn.Parameter(torch.randn(6))
    prior = torch.tensor([0.5, 0.3, 0.2, 0.0, 0.0, 0.0])

    def loss(i):
        p = torch.softmax(logits, 0)
        q = (prior + 1e-3) / 1.006 if fixed else prior
        return (p * torch.log(p / q)).sum()  # ORIGIN

    return None, train([logits], loss)


@fault("pow-fraction-at-zero", "pow", "backward", step=0, ops=("mul",))
def unbalanced_scaling_of_an_empty_bin(fixed):
    torch.manual_seed(6)
    mass = nn.Parameter(torch.tensor([0.4, 0.6, 0.0, -0.2]))
    kernel = torch.exp(-torch.rand(4, 4))

    def loss(i):
        a = mass.square() + (1e-6 if fixed else 0.0)
        u = (a / kernel.sum(1)) ** 0.5  # ORIGIN
        return (kernel * u[:, None]).sum()

    return None, train([mass], loss)
