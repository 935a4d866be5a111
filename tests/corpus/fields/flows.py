"""Flow matching and normalising flows."""


import torch
from programs import fault, train
from torch import nn


@fault("div-by-zero", "div", step=2)
def velocity_at_the_end_of_time(fixed):
    torch.manual_seed(0)
    net = nn.Linear(3, 2)
    gen = torch.Generator().manual_seed(1)

    def loss(i):
        x0, x1 = torch.randn(6, 2, generator=gen), torch.randn(6, 2, generator=gen)
        t = torch.rand(6, 1, generator=gen) * 0.9
        if i == 2:
            t[0] = 1.0
        xt = (1 - t) * x0 + t * x1
        velocity = (x1 - xt) / (1 - t).clamp_min(1e-3 if fixed else 0.0)  # ORIGIN
        return (net(torch.cat([xt, t], -1)) - velocity).square().mean()

    return net, train(net.parameters(), loss)


@fault("log-of-zero", "logit", step=1, ops=("log",))
def logits_of_saturated_pixels(fixed):
    torch.manual_seed(2)
    net = nn.Linear(4, 4)
    gen = torch.Generator().manual_seed(3)

    def loss(i):
        pixel = torch.rand(5, 4, generator=gen) * 0.9 + 0.05
        if i == 1:
            pixel[2, 1] = 1.0
        if fixed:
            pixel = 0.05 + 0.9 * pixel
        z = torch.logit(pixel)  # ORIGIN
        return (net(z) - z).square().mean()

    return net, train(net.parameters(), loss)


@fault("exp-overflow", "exp", step=1)
def scale_of_a_coupling_without_tanh(fixed):
    torch.manual_seed(4)
    net = nn.Linear(2, 4)
    gen = torch.Generator().manual_seed(5)

    def loss(i):
        x = torch.randn(6, 4, generator=gen) * (400.0 if i == 1 else 1.0)
        s, t = net(x[:, :2]).chunk(2, -1)
        s = torch.tanh(s) if fixed else s
        z = x[:, 2:] * torch.exp(s) + t  # ORIGIN
        return 1e-4 * (0.5 * z.square().sum(-1) - s.sum(-1)).mean()

    return net, train(net.parameters(), loss)


@fault("sqrt-of-negative", "sqrt", step=1)
def root_of_a_spline_outside_its_bin(fixed):
    torch.manual_seed(6)
    width = nn.Parameter(torch.tensor([1.0, 2.0]))

    def loss(i):
        y = torch.tensor([0.2, 0.4]) if i != 1 else torch.tensor([0.2, 3.0])
        a, b, c = width, -2 * torch.ones(2), y
        inside = b**2 - 4 * a * c
        if fixed:
            inside = inside.clamp_min(1e-6)
        root = (-b - torch.sqrt(inside)) / (2 * a)  # ORIGIN
        return root.square().sum()

    return None, train([width], loss)


@fault("log-of-zero", "log", step=0)
def planar_flow_that_folds(fixed):
    torch.manual_seed(7)
    u = nn.Parameter(torch.tensor([-1.0, 0.0]))
    w = nn.Parameter(torch.tensor([1.0, 0.0]))
    x = torch.tensor([[0.0, 1.0], [0.5, 0.2]])

    def loss(i):
        slope = (1 - torch.tanh(x @ w) ** 2)[:, None] * w
        volume = (1 + slope @ u).abs()
        return -torch.log(volume + 1e-6 if fixed else volume).mean()  # ORIGIN

    return None, train([u, w], loss)


@fault("inverse-function-at-edge", "atanh", step=2, also=("log-of-zero",))
def inverse_squash_of_a_bounded_action(fixed):
    torch.manual_seed(8)
    net = nn.Linear(3, 2)
    gen = torch.Generator().manual_seed(9)

    def loss(i):
        x = torch.randn(6, 3, generator=gen)
        action = torch.rand(6, 2, generator=gen) * 1.8 - 0.9
        if i == 2:
            action[1, 0] = 1.0
        raw = torch.atanh(action.clamp(-0.999, 0.999) if fixed else action)  # ORIGIN
        return (net(x) - raw).square().mean()

    return net, train(net.parameters(), loss)
