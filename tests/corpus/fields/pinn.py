"""Networks held to differential equations."""

import torch
from programs import fault, healthy, train
from torch import nn


def network(inputs, seed, width=16):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(inputs, width), nn.Tanh(), nn.Linear(width, width), nn.Tanh(), nn.Linear(width, 1))


def slope(u, x):
    return torch.autograd.grad(u.sum(), x, create_graph=True)[0]


@fault("div-by-zero", "div", step=2)
def laplacian_at_the_pole(fixed):
    net = network(1, 0)
    gen = torch.Generator().manual_seed(1)

    def loss(i):
        r = torch.rand(16, 1, generator=gen)
        r[0] = 0.0 if i == 2 else 0.5
        r.requires_grad_()
        u_r = slope(net(r), r)
        u_rr = slope(u_r, r)
        residual = r * u_rr + u_r - r if fixed else u_rr + u_r / r - 1  # ORIGIN
        return residual.square().mean()

    return net, train(net.parameters(), loss)


@fault("pow-fraction-at-zero", "pow", step=0, also=("div-by-zero", "sqrt-at-zero"), ops=("reciprocal",))
def p_laplacian_of_a_flat_start(fixed):
    net = network(2, 2)
    nn.init.zeros_(net[-1].weight)
    x = torch.rand(16, 2)

    def loss(i):
        x.requires_grad_()
        g = slope(net(x), x)
        square = g.square().sum(-1, keepdim=True)
        stiffness = (square + 1e-4) ** -0.25 if fixed else square**-0.25  # ORIGIN
        flux = stiffness * g
        return (flux.square().sum(-1) - 1).square().mean()

    return net, train(net.parameters(), loss)


@fault("log-of-zero", "log", step=1)
def source_on_a_collocation_point(fixed):
    net = network(2, 3)
    gen = torch.Generator().manual_seed(4)
    source = torch.tensor([0.5, 0.5])

    def loss(i):
        x = torch.rand(16, 2, generator=gen)
        if i == 1:
            x[3] = source
        r = (x - source).norm(dim=-1, keepdim=True)
        singular = torch.log(r.clamp_min(1e-3) if fixed else r)  # ORIGIN
        return (net(x) + singular).square().mean()

    return net, train(net.parameters(), loss)


@fault("div-by-zero", "div", step=3)
def balance_of_gradient_norms(fixed):
    net = network(1, 5)
    x, edge = torch.rand(16, 1), torch.tensor([[0.0], [1.0]])
    weight = [torch.tensor(1.0)]

    def loss(i):
        inner = (net(x) - x.square()).square().mean()
        target = net(edge).detach() if i == 3 else torch.zeros(2, 1)
        outer = (net(edge) - target).square().mean()
        a = torch.cat([g.flatten() for g in torch.autograd.grad(inner, list(net.parameters()), retain_graph=True)])
        b = torch.cat([g.flatten() for g in torch.autograd.grad(outer, list(net.parameters()), retain_graph=True)])
        mean = b.abs().mean() + (1e-8 if fixed else 0.0)
        weight[0] = 0.9 * weight[0] + 0.1 * a.abs().max() / mean  # ORIGIN
        return inner + weight[0] * outer

    return net, train(net.parameters(), loss, 1e-4)


@fault("sqrt-of-negative", "sqrt", step=0)
def celerity_of_dry_bed(fixed):
    net = network(2, 6)
    nn.init.constant_(net[-1].bias, 0.1)
    x = torch.rand(32, 2) * 4 - 2

    def loss(i):
        depth = net(x)
        if fixed:
            depth = nn.functional.softplus(depth)
        celerity = torch.sqrt(9.81 * depth)  # ORIGIN
        return (celerity - 1).square().mean()

    return net, train(net.parameters(), loss)


@fault("exp-overflow", "exp", step=2)
def arrhenius_below_absolute_zero(fixed):
    net = network(1, 7)
    x = torch.rand(16, 1)
    shift = torch.zeros(16, 1)

    def loss(i):
        if i == 2:
            shift[4] = -360.0
        kelvin = 300 + net(x) + shift
        if fixed:
            kelvin = kelvin.clamp_min(200.0)
        rate = torch.exp(-8000.0 / kelvin)  # ORIGIN
        return (1e6 * rate - x).square().mean()

    return net, train(net.parameters(), loss, 1e-9)


@fault("div-by-zero", "div", step=0, also=("zero-times-inf",))
def cole_hopf_of_rectified_potential(fixed):
    net = network(1, 8)
    x = torch.linspace(-2, 2, 32)[:, None]

    def loss(i):
        x.requires_grad_()
        phi = torch.relu(net(x)) + (0.1 if fixed else 0.0)
        velocity = -0.02 * slope(phi, x) / phi  # ORIGIN
        return (velocity - torch.sin(x)).square().mean()

    return net, train(net.parameters(), loss)


@fault("poisoned-buffer", "div", "init", step=0, also=("div-by-zero",), building=True)
def collocation_grid_of_one_point(fixed):
    net = network(1, 9)
    n = 1
    grid = torch.arange(n, dtype=torch.float32) / (torch.tensor(float(max(n - 1, fixed))))  # ORIGIN
    net.register_buffer("grid", grid[:, None])

    def loss(i):
        return (net(net.grid) - 1).square().mean()

    return net, train(net.parameters(), loss)


@healthy("causal weights of late times are exactly zero by design; early times drive the network")
def causal_weights(fixed=False):
    net = network(1, 10)
    t = torch.linspace(0, 1, 20)[:, None]

    def loss(i):
        residual = (net(t) - 30 * torch.sin(9 * t)).square().squeeze(-1)
        weights = torch.exp(-5.0 * (residual.cumsum(0) - residual)).detach()
        return (weights * residual).mean()

    return net, train(net.parameters(), loss)


@healthy("the removable singularity is repaired before the division")
def guarded_pole(fixed=False):
    net = network(1, 11)
    r = torch.linspace(0, 1, 17)[:, None]

    def loss(i):
        x = r.clone().requires_grad_()
        u_r = slope(net(x), x)
        u_rr = slope(u_r, x)
        safe = torch.where(r > 0, r, torch.ones_like(r))
        residual = torch.where(r > 0, u_rr + u_r / safe, 2 * u_rr) - 1
        return residual.square().mean()

    return net, train(net.parameters(), loss)
