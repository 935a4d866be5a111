"""Differentiable rendering."""

import torch
from programs import fault, healthy, train
from torch import nn


@fault("log-of-zero", "log", step=1)
def transmittance_behind_an_opaque_sample(fixed):
    torch.manual_seed(0)
    net = nn.Linear(3, 1)
    nn.init.constant_(net.bias, 1.0)
    x = torch.rand(6, 12, 3)

    def loss(i):
        raw = net(x).squeeze(-1) * (1 if i < 1 or fixed else 300)
        alpha = 1 - torch.exp(-torch.relu(raw))
        log = torch.log(1 - alpha + 1e-6 * fixed)  # ORIGIN
        through = torch.exp(log.cumsum(-1) - log)
        return ((through * alpha).sum(-1) - 0.5).square().mean()

    return net, train(net.parameters(), loss, 1e-2 if fixed else 1e-6)


@fault("where-grad-trap", "div", "backward", step=0, also=("sqrt-of-negative", "sqrt-at-zero"), ops=("sqrt", "mul"))
def rays_beside_the_sphere(fixed):
    radius = nn.Parameter(torch.tensor(1.0))
    offset = torch.linspace(0, 2, 9)

    def loss(i):
        inside = radius.square() - offset.square()
        hit = inside > 0
        chord = torch.sqrt(torch.where(hit, inside, torch.ones_like(inside)) if fixed else inside)  # ORIGIN
        return torch.where(hit, chord, torch.zeros_like(inside)).sum()

    return None, train([radius], loss)


@fault("norm-at-zero", "div", step=2, also=("div-by-zero",))
def normal_of_a_collapsed_triangle(fixed):
    torch.manual_seed(1)
    vertices = nn.Parameter(torch.randn(6, 3))
    faces = torch.tensor([[0, 1, 2], [2, 3, 4]])

    def loss(i):
        f = faces if i < 2 else torch.cat([faces, torch.tensor([[5, 5, 1]])])
        a, b, c = vertices[f].unbind(1)
        n = torch.linalg.cross(b - a, c - a)
        length = torch.linalg.vector_norm(n, dim=-1, keepdim=True)
        n = nn.functional.normalize(n, dim=-1) if fixed else n / length  # ORIGIN
        return (n @ torch.tensor([0.0, 0.0, 1.0]) - 0.3).square().sum()

    return None, train([vertices], loss)


@fault("div-by-zero", "div", step=0)
def highlight_of_a_mirror(fixed):
    torch.manual_seed(2)
    rough = nn.Parameter(torch.tensor([0.5, 0.2, 0.0]))

    def loss(i):
        a2 = rough.clamp_min(0.02 if fixed else 0.0) ** 4
        cosine = torch.tensor([1.0, 0.9, 1.0])
        d = a2 / (torch.pi * (cosine.square() * (a2 - 1) + 1).square())  # ORIGIN
        return (d - 1).square().mean()

    return None, train([rough], loss, 1e-6)


@fault("sqrt-of-negative", "sqrt", step=1)
def total_reflection(fixed):
    eta = nn.Parameter(torch.tensor(1.3))
    angle = torch.linspace(0.0, 0.7, 8)

    def loss(i):
        sine = eta * torch.sin(angle * (1 if i < 1 else 2))
        inside = 1 - sine.square()
        cosine = torch.sqrt(inside.clamp_min(1e-4) if fixed else inside)  # ORIGIN
        return (cosine - 0.8).square().mean()

    return None, train([eta], loss)


@fault("inverse-function-at-edge", "rsqrt", "backward", step=0, ops=("acos", "mul", "div", "neg", "sqrt"))
def polar_angle_of_the_zenith(fixed):
    torch.manual_seed(3)
    net = nn.Linear(1, 1)
    direction = nn.Parameter(torch.tensor([[0.0, 0.0, 1.0], [0.6, 0.0, 0.8]]))

    def loss(i):
        cosine = direction[:, 2] / direction.norm(dim=-1)
        theta = torch.acos(cosine.clamp(-1 + 1e-6, 1 - 1e-6) if fixed else cosine)  # ORIGIN
        return (net(theta[:, None]) - 1).square().mean()

    return None, train([direction, *net.parameters()], loss)


@fault("div-by-zero", "div", step=1)
def throughput_of_an_impossible_sample(fixed):
    torch.manual_seed(4)
    albedo = nn.Parameter(torch.rand(5))

    def loss(i):
        cosine = torch.linspace(0.2, 1, 5) if i < 1 else torch.linspace(0.0, 1, 5)
        pdf = cosine / torch.pi
        throughput = albedo * cosine / torch.pi / (pdf.clamp_min(1e-6) if fixed else pdf)  # ORIGIN
        return (throughput - 0.5).square().mean()

    return None, train([albedo], loss)


@fault("repair-forward-only", "div", "backward", step=2, also=("div-by-zero",), ops=("reciprocal", "mul", "pow"))
def disparity_with_repaired_sky(fixed):
    torch.manual_seed(5)
    net = nn.Linear(3, 1)
    x = torch.randn(8, 3)

    def loss(i):
        depth = torch.relu(net(x) + 5) * (torch.arange(8)[:, None] > (-1 if i < 2 else 2))
        if fixed:
            disparity = 1 / depth.clamp_min(1e-2)
        else:
            disparity = torch.nan_to_num(1 / depth, posinf=0.0)  # ORIGIN
        return (disparity - 0.2).square().mean()

    return net, train(net.parameters(), loss)


@fault(
    "dead-gradient",
    "floor",
    step=0,
    also=("graph-cut",),
    ops=("round", "trunc", "zeros_like", "floor_backward", "ge", "_to_copy", "mul"),
    phase="backward",
)
def hard_pixel_coordinates(fixed):
    torch.manual_seed(6)
    centre = nn.Parameter(torch.tensor([3.2, 4.7]))
    image = torch.rand(8, 8)

    def loss(i):
        at = centre if fixed else torch.floor(centre)  # ORIGIN
        grid = (
            (torch.stack(torch.meshgrid(torch.arange(8.0), torch.arange(8.0), indexing="ij"), -1) - at).square().sum(-1)
        )
        return ((torch.exp(-grid) - image).square()).mean()

    return None, train([centre], loss)


@healthy("rays that miss have zero weight, and their depth is infinite by intent")
def missed_rays(fixed=False):
    torch.manual_seed(7)
    colour = nn.Parameter(torch.rand(4))
    depth = torch.tensor([1.0, torch.inf, 2.0, torch.inf])
    return None, train([colour], lambda i: (torch.exp(-depth) * colour - 0.1).square().mean())


@healthy("a depth test against a buffer of infinities")
def depth_buffer(fixed=False):
    torch.manual_seed(8)
    z = nn.Parameter(torch.rand(3, 6) + 1)

    def loss(i):
        nearest = torch.full((6,), torch.inf)
        for layer in z:
            nearest = torch.minimum(nearest, layer)
        return (nearest - 1).square().mean()

    return None, train([z], loss)
