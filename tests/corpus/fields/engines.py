"""Arms, equations, state spaces, processes and flows, by the newer interfaces of torch."""

import math
from itertools import pairwise

import torch
from programs import fault, train
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint


def drawn(seed, *shape):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def mlp(*sizes):
    torch.manual_seed(sum(sizes))
    layers = []
    for a, b in pairwise(sizes):
        layers += [nn.Linear(a, b), nn.Tanh()]
    return nn.Sequential(*layers[:-1])


@fault("div-by-zero", "div", step=2)
def slerp_between_equal_orientations(fixed):
    net = mlp(4, 8, 4)

    def slerp(a, b, t):
        cosine = (a * b).sum(-1, keepdim=True).clamp(-1, 1)
        angle = torch.acos(cosine * (1 - 1e-6))
        near = cosine > 0.99999
        if fixed:
            angle = torch.where(near, torch.ones_like(angle), angle)
        else:
            angle = angle * ~near
        wa = torch.sin((1 - t) * angle) / torch.sin(angle)  # ORIGIN
        wb = torch.sin(t * angle) / torch.sin(angle)
        if fixed:
            wa, wb = torch.where(near, 1 - t, wa), torch.where(near, t, wb)
        return wa * a + wb * b

    def loss(i):
        start, goal = F.normalize(drawn(i, 5, 4), dim=-1), F.normalize(drawn(i + 50, 5, 4), dim=-1)
        if i == 2:
            goal[1] = start[1]
        middle = slerp(start, goal, 0.3)
        return (F.normalize(net(middle), dim=-1) - goal).square().mean()

    return net, train(net.parameters(), loss)


@fault("div-by-zero", "div", step=0)
def quintic_waypoints_with_time_to_go(fixed):
    class Tracker(nn.Module):
        def __init__(self, horizon):
            super().__init__()
            self.gain = nn.Parameter(torch.tensor(0.5))
            self.horizon = horizon

        def forward(self, x, goal):
            path = []
            for k in range(self.horizon + (not fixed)):
                left = torch.tensor(float(self.horizon - k))
                velocity = self.gain * (goal - x) / left  # ORIGIN
                x = x + velocity
                path.append(x)
            return torch.stack(path)

    net = Tracker(5)
    goal = drawn(1, 3)
    return net, train(net.parameters(), lambda i: (net(drawn(i, 3), goal) - goal).square().mean())


@fault("div-by-zero", "div", step=1, also=("norm-at-zero",))
def six_numbers_of_a_rotation_that_are_parallel(fixed):
    net = mlp(3, 8, 6)

    def unit(v):
        length = v.pow(2).sum(-1, keepdim=True)
        length = torch.where(length > 0, length, length.new_full((), 1e-12)).sqrt() if fixed else length.add(0).sqrt()
        return v / length  # ORIGIN

    def rotation(six):
        first = unit(six[..., :3])
        second = six[..., 3:] - (first * six[..., 3:]).sum(-1, keepdim=True) * first
        second = unit(second)
        return torch.stack([first, second, torch.linalg.cross(first, second)], -2)

    def loss(i):
        six = net(drawn(i, 4, 3))
        if i == 1:
            with torch.no_grad():
                start = six.detach().clone()
                start[0] = torch.tensor([2.0, 0, 0, 4.0, 0, 0])
            six = six + (start - six).detach()
        return (rotation(six) - torch.eye(3)).square().mean()

    return net, train(net.parameters(), loss)


@fault("norm-at-zero", "div", "backward", step=1, also=("sqrt-at-zero", "zero-times-inf"), ops=("sqrt", "mul"))
def distance_field_by_functional_gradient(fixed):
    net = mlp(3, 8, 1)

    def field(p):
        radius = torch.sqrt(p.pow(2).sum() + (1e-8 if fixed else 0.0))  # ORIGIN
        return radius - 1 + 0.1 * net(p).squeeze()

    normals = torch.func.vmap(torch.func.grad(field))

    def loss(i):
        points = drawn(i, 6, 3)
        if i == 1:
            points[2] = 0.0
        return (normals(points).norm(dim=-1) - 1).square().mean()

    return net, train(net.parameters(), loss)


@fault("exp-overflow", "linalg_matrix_exp", step=0, ops=("matrix_exp", "mul", "mm", "bmm", "add", "copy_"), also=("dtype-overflow", "exploding-gradient"))
def transition_matrix_of_an_unstable_system(fixed):
    class Continuous(nn.Module):
        def __init__(self, n):
            super().__init__()
            self.generator = nn.Parameter(drawn(3, n, n) * 0.1 + 30 * torch.eye(n))
            self.read = nn.Linear(n, 1)

        def forward(self, u, dt):
            a = self.generator
            if fixed:
                a = a - 30 * torch.eye(len(a)) - torch.eye(len(a))
            transition = torch.linalg.matrix_exp(a * dt)  # ORIGIN
            state, out = torch.zeros(len(a)), []
            for value in u:
                state = transition @ state + value
                out.append(self.read(state))
            return torch.cat(out)

    net = Continuous(4)
    return net, train(net.parameters(), lambda i: (net(drawn(i, 6), 4.0) - 1).abs().mean())


@fault("log-of-zero", "log", step=0)
def eigenvalues_in_complex_logarithms(fixed):
    class Diagonal(nn.Module):
        def __init__(self, n):
            super().__init__()
            radius = torch.linspace(0.0 if not fixed else 0.1, 0.9, n)
            self.eigenvalues = nn.Parameter(torch.polar(radius, torch.linspace(0, 3, n)))
            self.out = nn.Parameter(torch.ones(n) / n)

        def kernel(self, length):
            steps = torch.arange(length)
            return torch.exp(torch.log(self.eigenvalues)[:, None] * steps)  # ORIGIN

        def forward(self, u):
            kernel = (self.out[:, None] * self.kernel(len(u))).sum(0).real
            spectrum = torch.fft.rfft(kernel, 2 * len(u)) * torch.fft.rfft(u, 2 * len(u))
            return torch.fft.irfft(spectrum)[: len(u)]

    net = Diagonal(4)
    return net, train(net.parameters(), lambda i: (net(drawn(i, 8)) - 1).square().mean())


@fault("degenerate-matrix", "_linalg_slogdet", step=0, steps=1, ops=("linalg_slogdet", "log", "linalg_inv_ex", "linalg_solve_ex", "slogdet"), also=("log-of-zero",))
def evidence_of_a_sensor_listed_twice(fixed):
    class Process(nn.Module):
        def __init__(self):
            super().__init__()
            self.scale = nn.Parameter(torch.zeros(()))

        def covariance(self, x):
            return torch.exp(-torch.cdist(x, x).square() * self.scale.exp() / 2)

        def forward(self, x, y):
            k = self.covariance(x)
            if fixed:
                k = k + 1e-2 * torch.eye(len(x))
            volume = torch.linalg.slogdet(k)[1]  # ORIGIN
            with torch.no_grad():
                weights = torch.linalg.pinv(k) @ y
            return y @ weights + volume

    net = Process()
    x = torch.tensor([[0.0], [1.5], [0.0], [3.0]])
    return net, train(net.parameters(), lambda i: net(x, drawn(2, 4)))


@fault("div-by-zero", "div", step=1, steps=4, also=("learning-rate", "zero-times-inf"), ops=("mul",))
def rational_quadratic_kernel_of_a_rectified_shape(fixed):
    class Kernel(nn.Module):
        def __init__(self):
            super().__init__()
            self.alpha = nn.Parameter(torch.tensor(0.3))

        def forward(self, distance):
            alpha = F.softplus(self.alpha) if fixed else torch.relu(self.alpha)
            return torch.exp(-alpha * torch.log1p(distance / (2 * alpha)))  # ORIGIN

    net = Kernel()
    distance = torch.arange(1.0, 6.0)
    return net, train(net.parameters(), lambda i: (1 - net(distance)).mean(), lr=2.0)


@fault("sqrt-at-zero", "sqrt", "backward", step=0, ops=("div",))
def matern_kernel_with_checkpointed_distances(fixed):
    class Matern(nn.Module):
        def __init__(self):
            super().__init__()
            self.warp = nn.Linear(2, 2)

        def distances(self, x):
            squared = (x[:, None] - x[None]).pow(2).sum(-1)
            if fixed:
                squared = squared + 1e-10
            return squared.sqrt()  # ORIGIN

        def forward(self, x):
            r = checkpoint(self.distances, self.warp(x), use_reentrant=False)
            return (1 + math.sqrt(3) * r) * torch.exp(-math.sqrt(3) * r)

    torch.manual_seed(0)
    net = Matern()
    return net, train(net.parameters(), lambda i: net(drawn(i, 5, 2)).mean())


@fault("div-by-zero", "reciprocal", step=0, ops=("div",))
def radial_flow_centred_on_a_sample(fixed):
    class Radial(nn.Module):
        def __init__(self, centre):
            super().__init__()
            self.register_buffer("centre", centre)
            self.alpha = nn.Parameter(torch.full((), -1.0))
            self.beta = nn.Parameter(torch.ones(()))

        def forward(self, z):
            radius = (z - self.centre).abs().sum(-1, keepdim=True)
            alpha = F.softplus(self.alpha) if fixed else self.alpha.clamp(min=0)
            h = 1 / (alpha + radius)  # ORIGIN
            log_det = (z.shape[-1] - 1) * torch.log1p((self.beta * h).abs())
            return z + self.beta * h * (z - self.centre), log_det

    x = drawn(4, 6, 2)
    net = Radial(x[0].clone())

    def loss(i):
        z, log_det = net(x)
        return z.square().sum(-1).mean() / 2 - log_det.mean()

    return net, train(net.parameters(), loss)


@fault("pow-fraction-at-zero", "pow", "backward", step=2, ops=("mul",), also=("zero-times-inf",))
def sliced_distance_of_equal_clouds(fixed):
    net = nn.Linear(3, 3)
    with torch.no_grad():
        net.weight.copy_(torch.eye(3))
        net.bias.zero_()

    def sliced(a, b, order=3):
        directions = F.normalize(drawn(9, 3, 7), dim=0)
        gap = (a @ directions).sort(0).values - (b @ directions).sort(0).values
        cost = gap.abs().pow(order).mean()
        return cost if fixed else cost ** (1 / order)  # ORIGIN

    def loss(i):
        x = drawn(i, 6, 3)
        return sliced(net(x), x + (1.0 if i < 2 else 0.0))

    return net, train(net.parameters(), loss, lr=0.0)


@fault("div-by-zero", "div", step=1, also=("norm-at-zero",))
def newton_schulz_root_of_an_empty_covariance(fixed):
    net = nn.Linear(3, 3)

    def root(a, n=6):
        norm = a.norm()
        if fixed:
            norm = norm.clamp_min(1e-6)
        y, z, eye = a / norm, torch.eye(3), torch.eye(3)  # ORIGIN
        for _ in range(n):
            t = 1.5 * eye - 0.5 * z @ y
            y, z = y @ t, t @ z
        return y * norm.sqrt()

    def loss(i):
        x = drawn(i, 8, 3)
        if i == 1:
            x = x[:1].expand(8, 3)
        centred = (x - x.mean(0)) if i != 1 else x - x
        reference = centred.T @ centred / 8
        out = net(x)
        return (root(reference) * out.mean(0)).square().sum()

    return net, train(net.parameters(), loss)


@fault("div-by-zero", "div", step=1, also=("norm-at-zero", "sqrt-at-zero"), ops=("sqrt",))
def lorentz_centroid_of_light_like_points(fixed):
    net = nn.Linear(2, 2)

    def inner(a):
        return a[..., 1:].square().sum(-1) - a[..., 0].square()

    def centroid(points, weights):
        mean = (weights[:, None] * points).sum(0)
        size = inner(mean).abs()
        return mean / (size.clamp_min(1e-6) if fixed else size).sqrt()  # ORIGIN

    def loss(i):
        v = net(drawn(i, 4, 2))
        points = torch.cat([(1 + v.square().sum(-1, keepdim=True)).sqrt(), v], -1)
        weights = torch.full((4,), 0.25)
        if i == 1:
            weights = torch.zeros(4)
        return centroid(points, weights)[1:].square().sum()

    return net, train(net.parameters(), loss)


@fault("sqrt-of-negative", "sqrt", step=3)
def time_coordinate_with_the_wrong_sign(fixed):
    net = nn.Embedding(6, 3)
    with torch.no_grad():
        net.weight.copy_(drawn(5, 6, 3) + 2)

    def lift(v):
        squared = v.pow(2).sum(-1, keepdim=True)
        return torch.cat([torch.sqrt(squared + 1 if fixed else squared - 1), v], -1)  # ORIGIN

    def loss(i):
        if i == 3:
            with torch.no_grad():
                net.weight[2] = torch.tensor([0.1, 0.2, 0.1])
        p = lift(net.weight)
        return (p[:, :1] - p[:, 1:].sum(-1, keepdim=True)).square().mean()

    return net, train(net.parameters(), loss)


@fault("log-of-zero", "log1p", step=2, ops=("log",))
def opacity_of_a_solid_splat(fixed):
    net = mlp(2, 8, 1)

    def transmittance(alpha):
        if fixed:
            alpha = alpha.clamp(max=0.9999)
        through = torch.log1p(-alpha)  # ORIGIN
        return torch.exp(torch.cumsum(through, 0) - through)

    def loss(i):
        logits = net(drawn(i, 5, 2)).squeeze(-1) + (20.0 if i == 2 else 0.0)
        alpha = torch.sigmoid(logits)
        return ((transmittance(alpha) * alpha).sum() - 0.5).square()

    return net, train(net.parameters(), loss)


@fault("div-by-zero", "div", step=1)
def depth_of_a_triangle_seen_edge_on(fixed):
    net = nn.Linear(2, 3)

    def area(a, b, c):
        return (b[0] - a[0]) * (c[1] - a[1]) - (b[1] - a[1]) * (c[0] - a[0])

    def barycentric(p, a, b, c):
        whole = area(a, b, c)
        if fixed:
            whole = torch.where(whole.abs() < 1e-6, torch.ones_like(whole), whole)
        parts = torch.stack([area(p, b, c), area(p, c, a), area(p, a, b)])
        return parts / whole  # ORIGIN

    def loss(i):
        a, b, c = torch.eye(3)[:, :2] * 2 if i != 1 else torch.tensor([[0.0, 0], [1, 1], [2, 2]])
        p = torch.tensor([0.3, 0.4])
        depth = F.softplus(net(p))
        return (barycentric(p, a, b, c) * depth).sum().square()

    return net, train(net.parameters(), loss)


@fault("pow-negative-base", "pow", step=1)
def lobe_with_a_trained_sharpness_seen_from_behind(fixed):
    class Lobe(nn.Module):
        def __init__(self):
            super().__init__()
            self.axis = nn.Parameter(torch.tensor([0.0, 0, 1]))
            self.sharpness = nn.Parameter(torch.tensor(2.5))

        def forward(self, view):
            cosine = view @ F.normalize(self.axis, dim=0)
            if fixed:
                cosine = cosine.clamp(min=1e-4)
            return torch.pow(cosine, self.sharpness)  # ORIGIN

    net = Lobe()

    def loss(i):
        view = F.normalize(drawn(i, 5, 3), dim=-1)
        view[:, 2] = view[:, 2].abs() if i != 1 else view[:, 2]
        view[0, 2] = 0.8 if i != 1 else -0.8
        return (net(view * torch.tensor([0.0, 0, 1])) - 0.5).square().mean()

    return net, train(net.parameters(), loss)


@fault("div-by-zero", "div", step=0, also=("inf-minus-inf", "zero-times-inf"))
def signal_to_noise_at_the_first_of_a_thousand_times(fixed):
    class Schedule:
        def __init__(self, n):
            betas = torch.linspace(1e-8 if not fixed else 1e-4, 0.02, n)
            self.alphas = torch.cumprod(1 - betas, 0)

        def weight(self, t):
            a = self.alphas[t]
            snr = a / (1 - a)  # ORIGIN
            return torch.clamp(snr, max=5.0) / snr

    net, schedule = mlp(3, 8, 2), Schedule(1000)

    def loss(i):
        t = torch.tensor([0, 10, 100, 500])
        x, noise = drawn(i, 4, 2), drawn(i + 9, 4, 2)
        a = schedule.alphas[t, None]
        noisy = a.sqrt() * x + (1 - a).sqrt() * noise
        error = (net(torch.cat([noisy, t[:, None] / 1000], -1)) - noise).square().mean(-1)
        snr = schedule.alphas[t] / (1 - schedule.alphas[t])  # ALSO
        return (schedule.weight(t) * error * snr / (snr + 1)).mean()

    return net, train(net.parameters(), loss)


@fault("div-by-zero", "div", step=1)
def stein_bandwidth_of_one_particle(fixed):
    net = nn.Linear(2, 1)

    def bandwidth(x):
        squared = torch.cdist(x, x).square()
        return squared.median() / math.log(len(x) + 1) if fixed else squared.median() / torch.log(torch.tensor(len(x)))  # ORIGIN

    def kernel(x):
        return torch.exp(-(x[:, None] - x[None]).square().sum(-1) / (bandwidth(x) + 1e-3))

    def loss(i):
        x = drawn(i, 1 if i == 1 else 5, 2)
        return (kernel(x) @ net(x)).square().mean()

    return net, train(net.parameters(), loss)


@fault("zero-times-inf", "mul", step=1, also=("log-of-zero",), ops=("log",))
def neural_operator_with_a_log_spectrum(fixed):
    """The logarithm of an empty band meets a filter that is zero there."""

    class Spectral(nn.Module):
        def __init__(self, n):
            super().__init__()
            self.gain = nn.Parameter(torch.ones(n // 2 + 1))
            self.register_buffer("keep", (torch.arange(n // 2 + 1) < 3).float())

        def forward(self, u):
            power = torch.fft.rfft(u).abs().square()
            level = torch.log(power + (1e-6 if fixed else 0.0))  # ALSO
            return (level * self.keep) @ self.gain  # ORIGIN

    net = Spectral(8)

    def loss(i):
        u = drawn(i, 4, 8)
        if i == 1:
            u[2] = torch.tensor([1.0, -1] * 4)  # all in the highest band, 0 below
        return (net(u) - 1).square().mean()

    return net, train(net.parameters(), loss, lr=1e-4)
