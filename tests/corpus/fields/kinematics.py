"""Rotations, contacts and time profiles."""


import torch
from programs import fault, train
from torch import nn
from torch.nn import functional as F


@fault("div-by-zero", "div", step=2)
def slerp_between_equal_keyframes(fixed):
    torch.manual_seed(0)
    net = nn.Linear(4, 4)
    gen = torch.Generator().manual_seed(1)

    def loss(i):
        a = F.normalize(torch.randn(6, 4, generator=gen), dim=-1)
        b = F.normalize(torch.randn(6, 4, generator=gen), dim=-1)
        if i >= 2:
            a[3] = b[3] = torch.tensor([1.0, 0.0, 0.0, 0.0])
        dot = (a * b).sum(-1, keepdim=True).clamp(-1, 1)
        omega = torch.acos(dot.clamp(-0.9999, 0.9999) if fixed else dot)
        left = torch.sin(0.5 * omega) / torch.sin(omega)  # ORIGIN
        middle = left * (a + b)
        return (net(a) - middle).square().mean()

    return net, train(net.parameters(), loss)


@fault("pow-negative-base", "pow", step=1)
def hertz_force_of_open_contact(fixed):
    torch.manual_seed(2)
    stiffness = nn.Parameter(torch.tensor(2.0))
    gap = torch.tensor([-0.2, -0.1, -0.4, -0.3])

    def loss(i):
        depth = -gap - 0.15 * min(i, 1)
        if fixed:
            depth = depth.clamp_min(0.0)
        force = stiffness * depth**1.5  # ORIGIN
        return (force - 0.1).square().mean()

    return None, train([stiffness], loss)


@fault("sqrt-of-negative", "sqrt", step=3)
def profile_longer_than_its_brake(fixed):
    torch.manual_seed(3)
    net = nn.Sequential(nn.Linear(2, 8), nn.Softplus())
    out = nn.Linear(8, 1)
    gen = torch.Generator().manual_seed(4)

    def loss(i):
        goal = torch.rand(12, 2, generator=gen) + 1.0
        if i == 3:
            goal[4, 0] = 0.01
        distance, speed = goal[:, 0], goal[:, 1].clamp(max=1.2) * 0.5
        rest = distance * 2.0 - speed**2
        peak = torch.sqrt(rest.clamp_min(1e-6) if fixed else rest)  # ORIGIN
        return (out(net(goal))[:, 0] - peak).square().mean()

    return nn.ModuleList([net, out]), train([*net.parameters(), *out.parameters()], loss)


@fault("inverse-function-at-edge", "asin", "backward", step=1, ops=("div", "mul", "rsqrt"))
def pitch_of_a_vertical_link(fixed):
    torch.manual_seed(5)
    pose = nn.Parameter(torch.tensor([[0.3, 0.1], [0.2, -0.4]]))

    def loss(i):
        scale = torch.ones(2, 2)
        if i == 1:
            scale = torch.tensor([[1.0, 1.0], [0.0, 1.0]])
        height = torch.cos(pose * scale)[:, 0]
        if fixed:
            height = height * 0.999
        pitch = torch.asin(height)  # ORIGIN
        return pitch.square().sum()

    return None, train([pose], loss)


@fault("degenerate-matrix", "linalg_inv_ex", step=2, ops=("inverse", "linalg_inv"))
def pseudo_inverse_at_a_singular_pose(fixed):
    torch.manual_seed(6)
    net = nn.Linear(2, 2)
    gen = torch.Generator().manual_seed(7)

    def loss(i):
        q = torch.rand(5, 2, generator=gen) + 0.5
        if i == 2:
            q[1] = 0.0
        rows = torch.stack([torch.cos(q[:, 0]), torch.sin(q[:, 1])], -1)
        jac = torch.stack([rows, rows * q[:, :1]], -2)
        gram = jac @ jac.mT + torch.eye(2) * (1e-2 if fixed else 0.0) + torch.diag_embed(
            torch.stack([q[:, 1] * 0, q[:, 1]], -1)
        )
        inverse = torch.linalg.inv_ex(gram).inverse  # ORIGIN
        return ((jac.mT @ inverse @ net(q)[..., None]).clamp(-9, 9)).square().mean()

    return net, train(net.parameters(), loss)
