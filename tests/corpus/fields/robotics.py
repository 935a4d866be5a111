"""Arms, legs and trajectories."""

import math

import torch
from programs import fault, healthy, train
from torch import nn


def jacobian(q):
    a, b = q[:, 0], q[:, 0] + q[:, 1]
    rows = [-torch.sin(a) - torch.sin(b), -torch.sin(b), torch.cos(a) + torch.cos(b), torch.cos(b)]
    return torch.stack(rows, -1).reshape(-1, 2, 2)


@fault("sqrt-at-zero", "div", "backward", step=2, also=("degenerate-matrix",), ops=("sqrt", "mul"))
def manipulability_of_stretched_arm(fixed):
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(2, 16), nn.Tanh(), nn.Linear(16, 2))
    target = torch.rand(8, 2) + 0.2

    def loss(i):
        q = net(target)
        if i == 2:
            q = q * torch.tensor([1.0, 0.0])  # the elbow is locked straight
        area = torch.linalg.det(jacobian(q)).square()
        measure = torch.sqrt(area + 1e-6) if fixed else torch.sqrt(area)  # ORIGIN
        return (q.square().sum(-1) - 0.1 * measure).mean()

    return net, train(net.parameters(), loss)


@fault("inverse-function-domain", "acos", step=3)
def elbow_of_unreachable_goal(fixed):
    torch.manual_seed(1)
    net = nn.Sequential(nn.Linear(3, 16), nn.ReLU(), nn.Linear(16, 2))
    gen = torch.Generator().manual_seed(2)

    def loss(i):
        goal = torch.rand(16, 2, generator=gen)
        if i == 3:
            goal[5] = torch.tensor([3.0, 1.0])
        cosine = (goal.square().sum(-1) - 2.0) / 2.0
        if fixed:
            cosine = cosine.clamp(-1, 1)
        elbow = torch.acos(cosine)  # ORIGIN
        return nn.functional.mse_loss(net(torch.cat([goal, elbow[:, None]], -1)), goal)

    return net, train(net.parameters(), loss)


@fault("div-by-zero", "div", step=1, also=("inverse-function-at-edge", "norm-at-zero"))
def logarithm_of_no_rotation(fixed):
    torch.manual_seed(3)
    net = nn.Linear(3, 3)
    generators = torch.randn(6, 3)

    def hat(w):
        o = torch.zeros_like(w[:, 0])
        return torch.stack([o, -w[:, 2], w[:, 1], w[:, 2], o, -w[:, 0], -w[:, 1], w[:, 0], o], -1).view(-1, 3, 3)

    def loss(i):
        w = generators.clone()
        if i >= 1:
            w[0] = 0.0
        rotation = torch.linalg.matrix_exp(hat(w))
        trace = rotation.diagonal(dim1=-2, dim2=-1).sum(-1)
        angle = torch.acos(((trace - 1) / 2).clamp(-1, 1))
        factor = angle / (2 * torch.sin(angle)) if not fixed else 0.5 / torch.sinc(angle / math.pi)  # ORIGIN
        log = factor[:, None, None] * (rotation - rotation.transpose(1, 2))
        return (net(log[:, [2, 0, 1], [1, 2, 0]]) - w).square().mean()

    return net, train(net.parameters(), loss)


@fault("norm-at-zero", "div", step=2, also=("div-by-zero",))
def friction_of_standing_foot(fixed):
    torch.manual_seed(4)
    gain = nn.Parameter(torch.tensor(0.8))
    velocity = torch.randn(12, 2)

    def loss(i):
        v = velocity.clone()
        if i >= 2:
            v[7] = 0.0
        speed = v.norm(dim=-1, keepdim=True)
        direction = v / (speed.clamp_min(1e-6) if fixed else speed)  # ORIGIN
        force = -gain * 9.81 * direction
        return (force + velocity).square().mean()

    return None, train([gain], loss)


@fault("log-of-negative", "log", step=4)
def barrier_behind_the_wall(fixed):
    torch.manual_seed(5)
    path = nn.Parameter(torch.linspace(0, 1, 10)[:, None] * torch.tensor([1.0, 0.2]))

    def loss(i):
        wall = 1.5 if i < 4 else 0.9
        gap = wall - path[:, 0]
        if fixed:
            gap = nn.functional.softplus(20 * gap) / 20
        barrier = -torch.log(gap)  # ORIGIN
        return (path[1:] - path[:-1]).square().sum() + 1e-4 * barrier.sum()

    return None, train([path], loss)


@fault("div-by-zero", "div", step=0, ops=("reciprocal",))
def duration_of_a_halt(fixed):
    torch.manual_seed(6)
    net = nn.Sequential(nn.Linear(2, 8), nn.Tanh(), nn.Linear(8, 1))
    nn.init.constant_(net[-1].bias, -0.2)
    points = torch.rand(9, 2)

    def loss(i):
        raw = net(points).squeeze(-1)
        speed = nn.functional.softplus(raw) if fixed else torch.relu(raw)
        length = (points[1:] - points[:-1]).norm(dim=-1)
        seconds = length / (speed[1:] + 1e-2) if fixed else length / speed[1:]  # ORIGIN
        return seconds.mean()

    return net, train(net.parameters(), loss)


@fault("log-of-zero", "log", step=2)
def soft_minimum_of_far_obstacles(fixed):
    torch.manual_seed(7)
    offset = nn.Parameter(torch.zeros(2))
    obstacles = torch.rand(6, 2) * 0.5 + 0.2

    def loss(i):
        where = offset + (torch.tensor([4.0, 4.0]) if i >= 2 else 0.0)
        distance = (obstacles - where).norm(dim=-1)
        if fixed:
            clearance = -torch.logsumexp(-50 * distance, 0) / 50
        else:
            clearance = -torch.log(torch.exp(-50 * distance).sum()) / 50  # ORIGIN
        return (1 - clearance).square()

    return None, train([offset], loss)


@healthy("unreachable cells of a planner stay infinite and are never read by the loss")
def planner_with_walls(fixed=False):
    torch.manual_seed(8)
    cost = nn.Parameter(torch.rand(5, 5))

    def loss(i):
        value = torch.full((5, 5), torch.inf)
        value[0, 0] = 0.0
        for _ in range(4):
            moved = torch.stack([value, value.roll(1, 0), value.roll(1, 1)]).min(0).values
            value = torch.minimum(value, moved + cost.sigmoid())
        reached = value[torch.isfinite(value)]
        return reached.mean()

    return None, train([cost], loss)


@healthy("a controller that saturates in part of the batch still learns")
def saturated_torque(fixed=False):
    torch.manual_seed(9)
    net = nn.Linear(4, 2)
    x = torch.randn(32, 4) * torch.linspace(0.1, 30, 32)[:, None]
    return net, train(net.parameters(), lambda i: (net(x).clamp(-1, 1) - x[:, :2].sign()).square().mean())


@healthy("the joint limit's penalty is exactly zero inside the limits, while another term drives the joints")
def idle_limit_penalty(fixed=False):
    torch.manual_seed(10)
    q = nn.Parameter(torch.randn(6) * 0.1)
    return None, train([q], lambda i: torch.relu(q.abs() - 3.0).square().sum() + (q - 0.5).square().sum())
