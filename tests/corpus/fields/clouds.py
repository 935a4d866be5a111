"""Point clouds."""


import torch
from programs import fault, train
from torch import nn


@fault("sqrt-at-zero", "sqrt", "backward", step=1, ops=("div",))
def chamfer_distance_of_touching_points(fixed):
    torch.manual_seed(0)
    points = nn.Parameter(torch.rand(6, 3))
    target = torch.rand(8, 3)

    def loss(i):
        goal = target.clone()
        if i == 1:
            goal[2] = points.detach()[3]
        squared = (points[:, None] - goal[None]).square().sum(-1).min(1).values
        return torch.sqrt(squared + (1e-8 if fixed else 0.0)).mean()  # ORIGIN

    return None, train([points], loss)


@fault("norm-at-zero", "div", step=2, also=("div-by-zero",))
def normal_of_collinear_neighbours(fixed):
    torch.manual_seed(1)
    net = nn.Linear(3, 3)
    gen = torch.Generator().manual_seed(2)

    def loss(i):
        p = torch.randn(5, 3, 3, generator=gen)
        if i == 2:
            p[1] = torch.tensor([[0.0, 0, 0], [1.0, 0, 0], [2.0, 0, 0]])
        cross = torch.linalg.cross(p[:, 1] - p[:, 0], p[:, 2] - p[:, 0])
        size = cross.norm(dim=-1, keepdim=True)
        normal = cross / (size + 1e-8) if fixed else cross / size  # ORIGIN
        return (net(p.mean(1)) * normal).sum(-1).square().mean()

    return net, train(net.parameters(), loss)


@fault("div-by-zero", "reciprocal", step=0, ops=("div",))
def interpolation_at_a_known_point(fixed):
    torch.manual_seed(3)
    feature = nn.Parameter(torch.randn(4, 3))
    known = torch.rand(4, 3)
    asked = torch.cat([torch.rand(3, 3), known[:1]])

    def loss(i):
        d = torch.cdist(asked, known, compute_mode="donot_use_mm_for_euclid_dist")
        w = 1 / (d + 1e-8) if fixed else 1 / d  # ORIGIN
        w = w / w.sum(1, keepdim=True)
        return (w @ feature).square().mean()

    return None, train([feature], loss)


@fault("empty-reduction", "mean", step=1)
def ball_without_neighbours(fixed):
    torch.manual_seed(4)
    net = nn.Linear(3, 4)
    gen = torch.Generator().manual_seed(5)

    def loss(i):
        p = torch.rand(8, 3, generator=gen)
        centre = torch.rand(3, generator=gen) + (5.0 if i == 1 else 0.0)
        near = (p - centre).norm(dim=-1) < 1.5
        if fixed:
            near[0] = True
        return net(p[near]).mean(0).square().sum()  # ORIGIN

    return net, train(net.parameters(), loss)


@fault("div-by-zero", "div", step=2, also=("norm-at-zero",))
def unit_sphere_of_one_repeated_point(fixed):
    torch.manual_seed(6)
    net = nn.Linear(3, 4)
    gen = torch.Generator().manual_seed(7)

    def loss(i):
        p = torch.randn(2, 7, 3, generator=gen)
        if i == 2:
            p[1] = p[1, :1]
            p[1] = 0.25
        p = p - p.mean(1, keepdim=True)
        radius = p.norm(dim=-1).amax(1)[:, None, None]
        p = p / radius.clamp_min(1e-6) if fixed else p / radius  # ORIGIN
        return net(p).square().mean()

    return net, train(net.parameters(), loss)


@fault("degenerate-matrix", "svd", "backward", step=1, steps=2, ops=("linalg_svd", "_linalg_svd", "div", "mul", "linalg_eigh", "_linalg_eigh"))
def principal_axes_of_a_cube(fixed):
    torch.manual_seed(8)
    corners = torch.tensor([[x, y, z] for x in (-1.0, 1) for y in (-1.0, 1) for z in (-1.0, 1)])
    stretch = nn.Parameter(torch.tensor([1.0, 1.0, 1.0]))

    def loss(i):
        p = corners * stretch * (torch.tensor([1.0, 2.0, 3.0]) if i != 1 or fixed else 1.0)
        axes = torch.linalg.eigh(p.T @ p / 8).eigenvectors  # ORIGIN
        return (axes[:, 0] * torch.tensor([1.0, 2.0, 3.0])).sum()

    return None, train([stretch], loss, lr=0.0)
