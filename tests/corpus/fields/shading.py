"""Materials, cameras and splats."""

import math

import torch
from programs import fault, train
from torch import nn


@fault("div-by-zero", "div", step=1)
def microfacets_of_a_perfect_mirror(fixed):
    torch.manual_seed(0)
    rough = nn.Parameter(torch.tensor([0.5, 0.2, 0.0]))

    def loss(i):
        cosine = torch.ones(3) if i == 1 else torch.full((3,), 0.9)
        a2 = (rough.clamp_min(1e-2) if fixed else rough) ** 4
        density = a2 / (math.pi * (cosine**2 * (a2 - 1) + 1) ** 2)  # ORIGIN
        return density.clamp(max=1e3).mean()

    return None, train([rough], loss, lr=0.0)


@fault("where-grad-trap", "pow", "backward", step=0, also=("pow-fraction-at-zero",), ops=("mul",))
def display_curve_of_black(fixed):
    torch.manual_seed(1)
    albedo = nn.Parameter(torch.tensor([0.0, 0.1, 0.5, 0.9]))

    def loss(i):
        base = albedo.clamp_min(1e-4) if fixed else albedo
        curve = 1.055 * base ** (1 / 2.4) - 0.055  # ORIGIN
        shown = torch.where(albedo <= 0.0031308, 12.92 * albedo, curve)
        return (shown - 0.4).square().mean()

    return None, train([albedo], loss)


@fault("div-by-zero", "div", step=2, ops=("reciprocal",))
def conic_of_a_flattened_splat(fixed):
    torch.manual_seed(2)
    log_scale = nn.Parameter(torch.zeros(5, 2))
    mean = nn.Parameter(torch.randn(5, 2))

    def loss(i):
        s = torch.exp(log_scale)
        if i == 2:
            s = s * torch.tensor([1.0, 0.0])
        xx, yy = s[:, 0] ** 2 + (0.3 if fixed else 0), s[:, 1] ** 2 + (0.3 if fixed else 0)
        inverse = 1.0 / (xx * yy)  # ORIGIN
        power = -0.5 * (yy * mean[:, 0] ** 2 + xx * mean[:, 1] ** 2) * inverse
        return torch.exp(power).sum()

    return None, train([log_scale, mean], loss)


@fault("div-by-zero", "div", step=1)
def point_in_the_plane_of_the_camera(fixed):
    torch.manual_seed(3)
    shift = nn.Parameter(torch.zeros(3))
    points = torch.rand(6, 3) + torch.tensor([0.0, 0.0, 1.0])

    def loss(i):
        p = points.clone()
        if i == 1:
            p[2] = 0.0
        p = p + shift * torch.tensor([1.0, 1.0, 0.0])
        z = p[:, 2:].clamp_min(1e-2) if fixed else p[:, 2:]
        pixel = p[:, :2] / z  # ORIGIN
        return (pixel - 0.5).square().mean()

    return None, train([shift], loss)


@fault("log-of-zero", "log10", step=2)
def signal_to_noise_of_a_perfect_image(fixed):
    torch.manual_seed(4)
    image = nn.Parameter(torch.rand(4, 4))

    def loss(i):
        target = torch.full((4, 4), 0.5) if i != 2 else image.detach()
        error = (image - target).square().mean()
        return 10 * torch.log10(error + 1e-10 if fixed else error)  # ORIGIN

    return None, train([image], loss)


@fault("log-of-zero", "log1p", step=0, also=("inf-minus-inf",))
def transmittance_in_logarithms(fixed):
    torch.manual_seed(5)
    density = nn.Parameter(torch.tensor([0.1, 2.0, 40.0, 0.3]))
    colour = nn.Parameter(torch.rand(4))

    def loss(i):
        alpha = 1 - torch.exp(-density)
        if fixed:
            alpha = alpha.clamp(max=0.999)
        passed = torch.cumsum(torch.log1p(-alpha), 0)  # ORIGIN
        weight = alpha * torch.exp(passed - torch.log1p(-alpha))
        return ((weight * colour).sum() - 0.5) ** 2

    return None, train([density, colour], loss)
