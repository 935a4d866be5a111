"""Physics-informed networks with singular geometry, closures and schemes."""

import torch
from programs import fault, train
from torch import nn
from torch.func import functional_call, grad, vmap


def mlp(seed, inputs=2, width=12):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(inputs, width), nn.Tanh(), nn.Linear(width, 1))


@fault("sqrt-at-zero", "sqrt", "backward", step=1, ops=("div", "mul"))
def boundary_factor_at_a_corner(fixed):
    """The network is multiplied by a function that vanishes on the boundary of the square."""
    net = mlp(0)

    class Dirichlet(nn.Module):
        def forward(self, xy):
            x, y = xy.unbind(-1)
            inside = x * (1 - x) * y * (1 - y)
            factor = inside if fixed else torch.sqrt(inside)  # ORIGIN
            return factor * net(xy).squeeze(-1)

    ansatz = Dirichlet()

    def loss(i):
        gen = torch.Generator().manual_seed(i)
        xy = torch.rand(20, 2, generator=gen) * 0.8 + 0.1
        if i == 1:
            xy[7] = torch.tensor([0.0, 1.0])
        xy.requires_grad_(True)
        (du,) = torch.autograd.grad(ansatz(xy).sum(), xy, create_graph=True)
        return (du.sum(-1) - 1).square().mean()

    return net, train(net.parameters(), loss)


@fault("exp-overflow", "exp", step=2, also=("learning-rate", "exploding-gradient"), ops=("add_",))
def attention_weights_that_ascend(fixed):
    """Each residual has a weight, which gradient ascent makes larger."""
    net = mlp(1, 1)
    x = torch.linspace(0, 1, 10)[:, None]
    log_weight = nn.Parameter(torch.zeros(10, 1))
    down = torch.optim.SGD(net.parameters(), lr=1e-9)
    up = torch.optim.SGD([log_weight], lr=1.0 if fixed else 30.0, maximize=True)

    def step(i):
        residual = net(x) - 3 * torch.cos(6 * x)
        weight = torch.exp(log_weight.clamp(max=5) if fixed else log_weight)  # ORIGIN
        loss = (weight * residual.square()).mean()
        down.zero_grad()
        up.zero_grad()
        loss.backward()
        down.step()
        up.step()  # ALSO
        return loss

    step.parameters = {"log_weight": log_weight, **dict(net.named_parameters())}
    return None, step


@fault("pow-fraction-at-zero", "pow", "backward", step=2)
def retention_of_saturated_soil(fixed):
    net = mlp(2)
    n = nn.Parameter(torch.tensor(0.8))

    def retention(head):
        suction = -head * (head < 0)
        if fixed:
            suction = suction + 1e-3
        return (1 + (2.0 * suction) ** n) ** -0.5  # ORIGIN

    def loss(i):
        gen = torch.Generator().manual_seed(i)
        tz = torch.rand(16, 2, generator=gen)
        head = net(tz) - (-4.0 if i == 2 else 3.0)
        return (retention(head) - 0.4).square().mean()

    return net, train([*net.parameters(), n], loss)


@fault("log-of-negative", "log", step=1)
def wall_law_of_a_reversed_flow(fixed):
    net = mlp(3, 1)

    def loss(i):
        y = torch.linspace(0.1, 1, 9)[:, None].requires_grad_()
        u = net(y) + (2.0 if i == 0 else -2.0) * y
        (shear,) = torch.autograd.grad(u.sum(), y, create_graph=True)
        plus = y * shear * 100
        if fixed:
            plus = plus.abs() + 1.0
        law = torch.log(plus) / 0.41 + 5.0  # ORIGIN
        return (u - 0.05 * law).square().mean()

    return net, train(net.parameters(), loss)


@fault("exp-overflow", "exp", "backward", step=2, ops=("expm1",))
def flux_of_a_strong_drift(fixed):
    net = mlp(4, 1)

    def bernoulli(z):
        if fixed:
            return z * torch.exp(-z.clamp(min=-30)) / (-torch.expm1(-z.clamp(-30, 30)))
        return z / (torch.exp(z) - 1)  # ORIGIN

    def loss(i):
        gen = torch.Generator().manual_seed(i)
        x = torch.rand(8, 1, generator=gen)
        drift = net(x) + 1.0
        if i == 2:
            drift = drift + torch.tensor([[0.0]] * 7 + [[120.0]])
        return bernoulli(drift).square().mean()

    return net, train(net.parameters(), loss)


@fault("pow-fraction-at-zero", "pow", "backward", step=1, also=("div-by-zero",), ops=("mul",))
def crack_tip_by_functional_gradients(fixed):
    """The derivative of u = r**0.5 * net by torch.func, one point on the tip itself."""
    net = mlp(5, 1)

    def u(params, r):
        singular = (r + (1e-3 if fixed else 0.0)) ** 0.5  # ORIGIN
        return singular * functional_call(net, params, (r[None],)).squeeze()

    strain = vmap(grad(u, argnums=1), in_dims=(None, 0))
    opt = torch.optim.Adam(net.parameters(), lr=1e-3)

    def step(i):
        r = torch.linspace(0.0 if i == 1 else 0.1, 1, 8)
        opt.zero_grad()
        loss = (strain(dict(net.named_parameters()), r) - 1).square().mean()
        loss.backward()
        opt.step()
        return loss

    return net, step
