"""Rasterisers, fields and textures."""

import torch
from programs import fault, train
from torch import nn
from torch.nn import functional as F


@fault("exp-overflow", "exp", step=1)
def blending_of_near_triangles(fixed):
    """Weights of a soft rasteriser by depth, sharp, and nothing is subtracted."""
    torch.manual_seed(0)
    vertex = nn.Parameter(torch.randn(5, 3))

    def blend(depth, colour, gamma=1e-2):
        inverse = 1 / depth
        logits = inverse / gamma
        if fixed:
            logits = logits - logits.max()
        w = torch.exp(logits)  # ORIGIN
        return (w[:, None] * colour).sum(0) / w.sum()

    def loss(i):
        depth = 2 + vertex[:, 2].sigmoid() - (1.6 if i == 1 else 0)
        return (blend(depth, vertex.sigmoid()) - 0.5).square().sum()

    return None, train([vertex], loss, 1e-4)


@fault("div-by-zero", "div", step=2)
def perspective_of_a_triangle_across_the_camera(fixed):
    torch.manual_seed(1)
    z = nn.Parameter(torch.tensor([1.0, 2.0, 4.0]))
    uv = torch.rand(3, 2)

    def interpolate(bary, z):
        inverse = (bary / z).sum(-1, keepdim=True)
        if fixed:
            inverse = torch.where(inverse.abs() < 1e-6, torch.ones_like(inverse), inverse)
        return torch.einsum("pv,vc->pc", bary / z, uv) / inverse  # ORIGIN

    def loss(i):
        bary = torch.tensor([[0.5, 0.25, 0.25], [0.5, 0.5, 0.0]])
        depth = z if i != 2 else z * 0 + torch.tensor([1.0, -1.0, 4.0])
        return (interpolate(bary, depth) - 0.3).square().mean()

    return None, train([z], loss, 1e-3)


@fault("div-by-zero", "div", step=1, ops=("reciprocal",))
def masking_function_at_grazing_light(fixed):
    torch.manual_seed(2)
    net = nn.Sequential(nn.Linear(3, 8), nn.ReLU(), nn.Linear(8, 1), nn.Sigmoid())

    def smith(cosine, alpha):
        if fixed:
            cosine = cosine.clamp(min=1e-3)
        tangent2 = (1 - cosine**2) / cosine**2  # ORIGIN
        return 2 / (1 + torch.sqrt(1 + alpha**2 * tangent2))

    def loss(i):
        gen = torch.Generator().manual_seed(i)
        n, light = torch.randn(2, 7, 3, generator=gen)
        n = F.normalize(n, dim=-1)
        light = F.normalize(light, dim=-1)
        cosine = (n * light).sum(-1).abs()
        if i == 1:
            cosine[3] = 0.0
        return (smith(cosine, net(n).squeeze(-1) + 0.1) - 0.5).square().mean()

    return net, train(net.parameters(), loss)


@fault("dtype-overflow", "_to_copy", step=1, also=("inf-minus-inf",))
def radiance_stored_in_half(fixed):
    torch.manual_seed(3)
    net = nn.Linear(3, 3)

    def tonemap(c):
        return c / (1 + c)

    def loss(i):
        gen = torch.Generator().manual_seed(i)
        sky = torch.rand(4, 3, generator=gen)
        if i == 1:
            sky[0] = 9e4
        texture = sky.clamp(max=6e4).half() if fixed else sky.half()  # ORIGIN
        return (net(tonemap(texture.float())) - 0.5).square().mean()

    return net, train(net.parameters(), loss)


@fault("div-by-zero", "div", step=2)
def cone_that_starts_at_the_camera(fixed):
    torch.manual_seed(4)
    field = nn.Sequential(nn.Linear(6, 16), nn.Softplus(), nn.Linear(16, 1))

    class Frustum:
        def __init__(self, near, far):
            self.mu, self.hw = (near + far) / 2, (far - near) / 2

        def moments(self):
            denominator = 3 * self.mu**2 + self.hw**2 + (1e-8 if fixed else 0)
            mean = self.mu + 2 * self.mu * self.hw**2 / denominator  # ORIGIN
            return mean, self.hw**2 / 3

    def loss(i):
        near = torch.linspace(0.5, 2, 6)
        far = near + 0.25
        if i == 2:
            near, far = near.clone(), far.clone()
            near[0] = far[0] = 0.0
        mean, var = Frustum(near, far).moments()
        levels = 2.0 ** torch.arange(3)
        code = torch.sin(mean[:, None] * levels) * torch.exp(-0.5 * var[:, None] * levels**2)
        return (field(torch.cat([code, code.cos()], -1)) - 1).square().mean()

    return field, train(field.parameters(), loss)


@fault("where-grad-trap", "div", "backward", step=0, ops=("sqrt", "mul", "atan"), also=("sqrt-at-zero", "div-by-zero"))
def distortion_at_the_centre_of_a_fisheye(fixed):
    k = nn.Parameter(torch.tensor([0.1, 0.01]))
    shift = nn.Parameter(torch.zeros(2))
    xy = torch.tensor([[0.0, 0.0], [0.5, 0.1], [-0.2, 0.4]])

    def distort(p):
        square = p.square().sum(-1, keepdim=True)
        centre = square == 0
        r = torch.where(centre, torch.ones_like(square), square).sqrt() if fixed else square.sqrt()  # ALSO
        theta = torch.atan(r)
        scale = theta * (1 + k[0] * theta**2 + k[1] * theta**4) / r  # ORIGIN
        return p * torch.where(centre, torch.ones_like(scale), scale)

    return None, train([k, shift], lambda i: (distort(xy + shift) - xy).square().mean())


@fault("dead-gradient", "exp", step=0, steps=8, also=("dtype-underflow",), ops=("mul",))
def fog_that_hides_the_scene(fixed):
    """The density begins so large that the transmittance is 0 on every ray, and so is its slope."""
    torch.manual_seed(5)
    density = nn.Parameter(torch.full((4, 4), 0.2 if fixed else 40.0))
    albedo = nn.Parameter(torch.rand(4, 3))
    target = torch.rand(4, 3)

    def render():
        depth = F.softplus(density).sum(1) * (1.0 if fixed else 5.0)
        transmittance = torch.exp(-depth)  # ORIGIN
        return transmittance[:, None] * albedo

    return None, train([density, albedo], lambda i: (render() - target).square().mean(), 1e-1)


@fault("div-by-zero", "div", step=1)
def coordinates_of_a_map_one_pixel_wide(fixed):
    torch.manual_seed(6)
    conv = nn.Conv2d(2, 2, 3, padding=1)

    def sample(feature, pixels):
        size = torch.tensor([feature.shape[-1], feature.shape[-2]]) - 1
        grid = 2 * pixels / (size.clamp(min=1) if fixed else size) - 1  # ORIGIN
        return F.grid_sample(feature, grid[None, None], align_corners=True)

    def loss(i):
        image = torch.randn(1, 2, 6, 1 if i == 1 else 5, generator=torch.Generator().manual_seed(i))
        pixels = torch.tensor([[0.0, 1.0], [0.0, 3.5]])
        return (sample(conv(image), pixels) - 1).square().mean()

    return conv, train(conv.parameters(), loss)


@fault("div-by-zero", "div", step=2)
def second_samples_of_an_empty_bin(fixed):
    """Inverse transform sampling along a ray on which coarse weights are zero."""
    torch.manual_seed(7)
    fine = nn.Linear(1, 1)

    @torch.no_grad()
    def resample(bins, weights, u):
        cdf = F.pad(torch.cumsum(weights / weights.sum(), 0), (1, 0))
        above = torch.searchsorted(cdf, u).clamp(1, len(bins) - 1)
        below = above - 1
        width = cdf[above] - cdf[below]
        if fixed:
            width = torch.where(width < 1e-5, torch.ones_like(width), width)
        t = (u - cdf[below]) / width  # ORIGIN
        return bins[below] + t * (bins[above] - bins[below])

    def loss(i):
        weights = torch.tensor([0.2, 0.5, 0.3] if i != 2 else [0.0, 0.6, 0.4])
        z = resample(torch.linspace(1, 4, 4), weights, torch.linspace(0, 0.9, 5))
        return (fine(z[:, None]) - 1).square().mean()

    return fine, train(fine.parameters(), loss)
