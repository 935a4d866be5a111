"""Transport, survival, curved spaces, rendering, recommenders, graphs and flows."""

import torch
from programs import fault, train
from torch import nn
from torch.nn import functional as F


def drawn(seed, *shape):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


@fault("pow-fraction-at-zero", "pow", "backward", step=3, ops=("mul", "div"))
def sliced_distance_of_equal_samples(fixed):
    torch.manual_seed(0)
    net = nn.Linear(2, 2, bias=False)
    with torch.no_grad():
        net.weight.copy_(torch.eye(2))

    def sliced(x, y, p=3):
        way = F.normalize(drawn(1, 2, 5), dim=0)
        gap = (x @ way).sort(0).values - (y @ way).sort(0).values
        cost = gap.abs().pow(p).mean(0)
        return (cost + (1e-12 if fixed else 0)).pow(1 / p).mean()  # ORIGIN

    def loss(i):
        x = drawn(i, 8, 2)
        y = net(x.flip(0)).detach() if i == 3 else drawn(i + 30, 8, 2)
        return sliced(net(x), y)

    return net, train(net.parameters(), loss)


@fault("log-of-zero", "log", step=2)
def accelerated_failure_at_time_zero(fixed):
    torch.manual_seed(1)

    class Weibull(nn.Module):
        def __init__(self):
            super().__init__()
            self.scale, self.log_shape = nn.Linear(3, 1), nn.Parameter(torch.zeros(()))

        def forward(self, x, time, event):
            shape = self.log_shape.exp()
            time = time.clamp_min(1e-3) if fixed else time
            z = shape * (time.log() - self.scale(x)[:, 0])  # ORIGIN
            return -(event * (self.log_shape + z) - z.exp()).mean()

    net = Weibull()

    def loss(i):
        time = drawn(i, 9).abs() + 0.1
        time[4] = 0.0 if i == 2 else time[4]
        return net(drawn(i + 5, 9, 3), time, (torch.arange(9) % 2).float())

    return net, train(net.parameters(), loss, lr=1e-2)


@fault("div-by-zero", "div", "forward", step=0, steps=3, building=True, also=("poisoned-buffer", "inf-in-input"), ops=("reciprocal",))
def inverse_weights_of_the_last_censored_time(fixed):
    """Kaplan and Meier's curve of the censoring ends at 0; its reciprocal is a weight."""
    torch.manual_seed(2)
    net = nn.Linear(2, 1)
    time = torch.arange(1.0, 9.0)
    censored = torch.tensor([0, 1, 0, 0, 1, 0, 0, 1.0])
    at_risk = torch.arange(8, 0, -1).float()
    curve = torch.cumprod(1 - censored / at_risk, 0)
    weight = 1 / (curve.clamp_min(0.05) if fixed else curve)  # ORIGIN
    x = drawn(3, 8, 2)

    def loss(i):
        alive = torch.sigmoid(net(x)[:, 0])
        return (weight * (alive - (time > 4).float()).square()).mean()

    return net, train(net.parameters(), loss)


@fault("div-by-zero", "div", step=2, also=("norm-at-zero", "zero-times-inf"))
def tangent_vector_of_length_zero(fixed):
    torch.manual_seed(3)
    net = nn.Linear(3, 2, bias=False)

    def exp_map_of_the_origin(v):
        length = v.norm(dim=-1, keepdim=True)
        if fixed:
            length = length.clamp_min(1e-7)
        return torch.tanh(length) * v / length  # ORIGIN

    def loss(i):
        x = drawn(i, 6, 3)
        x[1] *= i != 2
        return (1 - exp_map_of_the_origin(net(x)).square().sum(1)).mean()

    return net, train(net.parameters(), loss)


@fault("inverse-function-at-edge", "acosh", "backward", step=0, ops=("mul", "div", "rsqrt"), also=("inverse-function-domain",))
def hyperboloid_distance_of_a_node_to_itself(fixed):
    emb = nn.Embedding(5, 2)
    with torch.no_grad():
        emb.weight.copy_(torch.tensor([[0.0, 0.0], [0.6, 0.8], [-1.0, 0.5], [0.3, 0.3], [1.2, -0.4]]))

    def lift(v):
        return torch.cat([(1 + v.square().sum(-1, keepdim=True)).sqrt(), v], -1)

    def distance(a, b):
        inner = a[:, 0] * b[:, 0] - (a[:, 1:] * b[:, 1:]).sum(-1)
        return torch.acosh(inner.clamp_min(1 + 1e-6) if fixed else inner.clamp_min(1.0))  # ORIGIN

    def loss(i):
        a, b = torch.tensor([0, 1, 2]), torch.tensor([0, 4, 3] if i == 0 else [3, 4, 0])
        return distance(lift(emb(a)), lift(emb(b))).mean()

    return emb, train(emb.parameters(), loss, lr=1e-3)


@fault("inverse-function-at-edge", "atanh", step=16, steps=24, ops=("mul", "add", "clamp"), also=("div-by-zero", "norm-at-zero"))
def ball_embedding_pushed_to_the_rim(fixed):
    """Points are moved apart without a bound and put back onto the rim itself."""
    points = nn.Parameter(torch.tensor([[0.1, 0.0], [-0.1, 0.05], [0.0, 0.2]]))
    rim = 1 - 1e-4 if fixed else 1.0

    def step(i):
        points.grad = None
        radius = points.norm(dim=1)
        loss = -torch.atanh(radius).mean()  # ORIGIN
        loss.backward()
        with torch.no_grad():
            points.sub_(0.1 * points.grad)
            points.div_(points.norm(dim=1, keepdim=True).clamp_min(1.0) / rim if fixed else points.norm(dim=1, keepdim=True).clamp_min(1.0))
            if fixed:
                points.mul_((rim / points.norm(dim=1, keepdim=True)).clamp(max=1.0))
        return loss

    step.parameters = {"points": points}
    return None, step


@fault("div-by-tiny", "div", "backward", step=21, steps=26, also=("div-by-zero", "dtype-underflow", "degenerate-matrix"), ops=("reciprocal", "mul"))
def splats_that_shrink_until_they_have_no_area(fixed):
    scale = nn.Parameter(torch.tensor([1.0, 0.7]))
    centre = nn.Parameter(torch.tensor([0.2, -0.1]))
    pixels = torch.cartesian_prod(torch.linspace(-1, 1, 5), torch.linspace(-1, 1, 5))

    def splat():
        s = scale.clamp_min(1e-3) if fixed else scale
        xx, yy = s[0] ** 2, s[1] ** 2
        det = xx * yy
        d = pixels - centre
        inverse = torch.stack([yy, xx]) / det  # ORIGIN
        return torch.exp(-0.5 * (d.square() * inverse).sum(1))

    def step(i):
        scale.grad = centre.grad = None
        loss = splat().sum()
        loss.backward()
        with torch.no_grad():
            scale.mul_(0.5)
        return loss

    step.parameters = {"scale": scale, "centre": centre}
    return None, step


@fault("div-by-zero", "div", step=2)
def expected_depth_of_an_empty_ray(fixed):
    torch.manual_seed(4)
    field = nn.Sequential(nn.Linear(1, 8), nn.ReLU(), nn.Linear(8, 1), nn.ReLU())
    depth = torch.linspace(0.1, 2, 12)
    with torch.no_grad():
        field[2].bias.fill_(0.5)

    def render(inside):
        density = field(depth[:, None])[:, 0] * inside
        through = torch.exp(-torch.cumsum(density, 1) * 0.15)
        weight = torch.cat([1 - through[:, :1], through[:, :-1] - through[:, 1:]], 1)
        mass = weight.sum(1)
        return (weight * depth).sum(1) / (mass + 1e-6 if fixed else mass)  # ORIGIN

    def loss(i):
        inside = torch.ones(4, 12)
        inside[1, :6] = 0
        if i == 2:
            inside[3] = 0
        return (render(inside) - 1.0).square().mean()

    return field, train(field.parameters(), loss, lr=1e-2)


@fault("div-by-zero", "div", step=0)
def barycentric_weights_of_a_sliver(fixed):
    torch.manual_seed(5)
    offset = nn.Parameter(torch.zeros(3, 2))

    def cross(a, b):
        return a[..., 0] * b[..., 1] - a[..., 1] * b[..., 0]

    def shade(tri, p, colour):
        a, b, c = (tri + offset).unbind(-2)
        area = cross(b - a, c - a)
        if fixed:
            area = torch.where(area.abs() < 1e-6, torch.ones_like(area), area)
        w = torch.stack([cross(b - p, c - p), cross(c - p, a - p), cross(a - p, b - p)], -1) / area[..., None]  # ORIGIN
        return (w * colour).sum(-1)

    def loss(i):
        tri = drawn(i, 4, 3, 2)
        if i % 4 == 0:
            tri[2] = torch.tensor([[0.0, 0.0], [1.0, 1.0], [2.0, 2.0]])
        return (shade(tri, torch.full((2,), 0.1), torch.tensor([1.0, 0.5, 0.0])) - 0.4).clamp(-2, 2).square().mean()

    return None, train([offset], loss)


@fault("log-of-zero", "log", step=2, also=("zero-times-inf",))
def rank_that_no_sampled_item_violates(fixed):
    """WARP: the logarithm of a rank estimated as items // tries, which can be 0."""
    torch.manual_seed(6)
    users, items = nn.Embedding(5, 4), nn.Embedding(6, 4)

    def loss(i):
        u, pos, neg = torch.arange(5), torch.arange(5), (torch.arange(5) + 1) % 6
        tries = torch.tensor([1, 2, 1, 3, 1]) if i != 2 else torch.tensor([1, 2, 9, 3, 1])
        rank = (6 - 1) // tries
        if fixed:
            rank = rank.clamp_min(1)
        weight = torch.log(rank.float())  # ORIGIN
        gap = 1 - (users(u) * (items(pos) - items(neg))).sum(1)
        return (weight * gap.relu()).mean()

    return nn.ModuleList([users, items]), train([*users.parameters(), *items.parameters()], loss)


@fault("empty-reduction", "mean", step=2, ops=("div",), also=("div-by-zero",))
def expert_that_nobody_is_sent_to(fixed):
    torch.manual_seed(7)

    class Mixture(nn.Module):
        def __init__(self, width=4, count=3):
            super().__init__()
            self.gate = nn.Linear(width, count)
            self.experts = nn.ModuleList(nn.Linear(width, width) for _ in range(count))

        def forward(self, x):
            chance = self.gate(x).softmax(-1)
            choice = chance.argmax(-1)
            out, balance = torch.zeros_like(x), []
            for k, expert in enumerate(self.experts):
                rows = (choice == k).nonzero()[:, 0]
                if fixed and not len(rows):
                    continue
                y = expert(x[rows]) * chance[rows, k, None]
                out = out.index_add(0, rows, y)
                balance.append(y.square().mean())  # ORIGIN
            return out, torch.stack(balance).var()

    net = Mixture()
    with torch.no_grad():
        net.gate.weight.copy_(torch.eye(3, 4))
        net.gate.bias.zero_()

    def loss(i):
        x = F.one_hot(torch.arange(9) % (2 if i == 2 else 3), 4).float() + 0.05 * drawn(i, 9, 4)
        y, balance = net(x)
        return (y - x).square().mean() + 0.1 * balance

    return net, train(net.parameters(), loss)


@fault("log-of-zero", "log", step=16, steps=20, ops=("abs",), also=("log-of-negative", "learning-rate"))
def volume_of_a_flow_whose_scale_passes_zero(fixed):
    """An elementwise affine flow with a free scale; each step takes 1/32 from it."""
    scale, shift = nn.Parameter(torch.tensor([0.5, 1.0])), nn.Parameter(torch.zeros(2))
    x = drawn(8, 16, 2)

    def log_prob(x):
        s = F.softplus(scale) if fixed else scale
        z = (x - shift) * s
        return -0.5 * z.square().sum(1) + torch.log(s.abs()).sum()  # ORIGIN

    def step(i):
        scale.grad = shift.grad = None
        loss = -log_prob(x).mean()
        loss.backward()
        with torch.no_grad():
            scale.sub_(1 / 32)
            shift.sub_(0.01 * shift.grad)
        return loss

    step.parameters = {"scale": scale, "shift": shift}
    return None, step


@fault("div-by-zero", "div", step=2, also=("norm-at-zero",))
def adapter_of_directions_on_a_pruned_column(fixed):
    """DoRA: the direction of each row of the adapted weight, one of which was pruned to 0."""
    torch.manual_seed(9)

    class Dora(nn.Module):
        def __init__(self, base, rank=2):
            super().__init__()
            self.base = base.requires_grad_(False)
            self.down = nn.Parameter(torch.randn(rank, base.in_features) * 0.1)
            self.up = nn.Parameter(torch.zeros(base.out_features, rank))
            self.size = nn.Parameter(base.weight.norm(dim=1, keepdim=True))

        def forward(self, x):
            w = self.base.weight + self.up @ self.down
            norm = w.norm(dim=1, keepdim=True).detach()
            if fixed:
                norm = norm.clamp_min(1e-6)
            return F.linear(x, self.size * w / norm, self.base.bias)  # ORIGIN

    base = nn.Linear(4, 3)
    net = Dora(base)
    x, y = drawn(10, 8, 4), drawn(11, 8, 3)

    def loss(i):
        if i == 2:
            with torch.no_grad():
                base.weight[1] = 0
                net.up[1] = 0
        return F.mse_loss(net(x), y)

    return net, train([net.down, net.up, net.size], loss, lr=1e-2)
