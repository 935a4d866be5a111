"""Healthy programs of the same sciences: guarded, masked, annealed, or bad by design where nothing reads it."""

import math

import torch
from programs import healthy, train
from torch import nn
from torch.nn import functional as F


def seeded(seed, *shape):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


@healthy("the centre of the lens is cut out before the division")
def softened_lens(fixed):
    grid = torch.cartesian_prod(torch.linspace(-1, 1, 5), torch.linspace(-1, 1, 5))
    einstein = nn.Parameter(torch.tensor(0.5))
    away = grid.square().sum(1) > 0

    def loss(i):
        rays = grid[away]
        return (rays - einstein**2 * rays / rays.square().sum(1, keepdim=True)).square().mean()

    return None, train([einstein], loss)


@healthy("self distances are infinite on purpose, the minimum never takes them")
def nearest_neighbour_of_each_star(fixed):
    stars = nn.Parameter(seeded(1, 6, 2))

    def loss(i):
        squared = (stars[:, None] - stars[None]).square().sum(-1)
        return squared.masked_fill(torch.eye(6, dtype=torch.bool), math.inf).min(1).values.mean()

    return None, train([stars], loss)


@healthy("xlogy is zero at zero")
def entropy_of_sparse_counts(fixed):
    counts = torch.tensor([[4.0, 0.0, 1.0], [0.0, 0.0, 5.0]])
    weight = nn.Parameter(torch.ones(2))

    def loss(i):
        p = counts / counts.sum(1, keepdim=True)
        return (weight * -torch.xlogy(p, p).sum(1)).sum()

    return None, train([weight], loss)


@healthy("borders of the alignment are infinite, the best path never touches them")
def local_alignment(fixed):
    score = nn.Parameter(seeded(2, 4, 5))

    def loss(i):
        table = torch.full((5, 6), -math.inf)
        rows = [table[0].clone()]
        rows[0][0] = 0.0
        for a in range(4):
            row = [torch.tensor(-math.inf)]
            for b in range(5):
                row.append(torch.maximum(rows[a][b], torch.maximum(rows[a][b + 1], row[b])) + score[a, b])
            rows.append(torch.stack(row))
        return -rows[4][5]

    return None, train([score], loss)


@healthy("the intrinsic value is taken on the last day, by a double where")
def option_with_a_guarded_expiry(fixed):
    price, time = torch.tensor([90.0, 110.0]), torch.tensor([0.5, 0.0])
    sigma = nn.Parameter(torch.tensor(0.2))
    normal = torch.distributions.Normal(0.0, 1.0)

    def loss(i):
        alive = time > 0
        t = torch.where(alive, time, torch.ones_like(time))
        spread = sigma * t.sqrt()
        d = (torch.log(price / 100) + 0.5 * sigma**2 * t) / spread
        call = price * normal.cdf(d) - 100 * normal.cdf(d - spread)
        return torch.where(alive, call, (price - 100).clamp_min(0)).mean()

    return None, train([sigma], loss)


@healthy("large but finite: cases grow to 1e12")
def counts_of_a_pandemic(fixed):
    rate = nn.Parameter(torch.tensor(0.1))
    day = torch.arange(0.0, 270.0, 30.0)

    def loss(i):
        return (torch.exp(rate * day).log() - 0.11 * day).square().mean()

    return None, train([rate], loss, lr=1e-7)


@healthy("illegal moves are minus infinity, each row has a legal one")
def replies_with_illegal_moves(fixed):
    payoff = nn.Parameter(seeded(3, 4, 4))
    legal = torch.ones(4, 4).tril().bool()

    def loss(i):
        logits = payoff.masked_fill(~legal, -math.inf)
        return -(logits.log_softmax(-1).masked_fill(~legal, 0.0) * payoff.softmax(-1).detach()).sum()

    return None, train([payoff], loss)


@healthy("a pseudo-inverse of a singular matrix without a gradient")
def pseudo_inverse_of_parallel_gradients(fixed):
    direction = torch.tensor([[1.0, 0.0], [1.0, 0.0]])
    signal = nn.Parameter(torch.tensor([0.5, 0.6]))
    inverse = torch.linalg.pinv(direction)
    return None, train([signal], lambda i: (inverse @ signal).square().sum())


@healthy("echoes at the floor are left out by their weight before the logarithm")
def decay_curve_with_a_mask(fixed):
    echo = torch.tensor([[1.0, 0.5, 0.24, 0.0]])
    gain = nn.Parameter(torch.ones(1, 1))

    def loss(i):
        good = echo > 0
        return torch.log((echo * gain)[good]).square().mean()

    return None, train([gain], loss)


@healthy("atan2 in the place of asin: finite at the antipodes")
def great_circle_by_atan2(fixed):
    place = nn.Parameter(torch.tensor([0.1, 0.0]))

    def loss(i):
        a, b = place
        return torch.atan2(((a.cos() * b.sin()) ** 2 + (a.sin() + 0.2) ** 2).sqrt(), a.cos() * b.cos()).square()

    return None, train([place], loss)


@healthy("one client has no such class, and it is not in the mean")
def clients_of_unequal_classes(fixed):
    torch.manual_seed(4)
    net = nn.Linear(3, 3)
    x, y = seeded(4, 6, 3), torch.tensor([0, 0, 0, 2, 2, 2])

    def loss(i):
        each = F.cross_entropy(net(x), y, reduction="none")
        return torch.stack([each[y == c].mean() for c in range(3) if bool((y == c).any())]).mean()

    return net, train(net.parameters(), loss)


@healthy("a surrogate gradient: the step is hard, its derivative soft")
def spikes_with_a_surrogate(fixed):
    torch.manual_seed(5)
    net = nn.Sequential(nn.Linear(4, 6), nn.Linear(6, 1))
    x = seeded(5, 8, 4)

    def loss(i):
        v = net[0](x)
        soft = torch.sigmoid(4 * v)
        return (net[1](soft + ((v > 0).float() - soft).detach()) - 1).square().mean()

    return net, train(net.parameters(), loss)


@healthy("an exact reflection: the gradient of a dead half is zero by design")
def symmetric_filter(fixed):
    torch.manual_seed(6)
    half = nn.Parameter(torch.randn(3))
    unused = nn.Parameter(torch.zeros(3))
    x = seeded(6, 1, 1, 20)

    def loss(i):
        kernel = torch.cat([half, half.flip(0)[1:]])
        return F.conv1d(x, kernel[None, None]).square().mean() + 0 * unused.sum()

    return None, train([half], loss)


@healthy("damped Fisher matrix")
def damped_natural_gradient(fixed):
    torch.manual_seed(7)
    net = nn.Linear(3, 1)
    x = seeded(7, 8, 3)
    x[:, 1] = 0

    def step(i):
        net.zero_grad()
        loss = (net(x) - 1).square().mean()
        loss.backward()
        with torch.no_grad():
            for p in net.parameters():
                p -= 0.01 * p.grad / (p.grad.square() + 1e-2)
        return loss

    return net, step


@healthy("missing reports are filled before the network sees them")
def stations_with_gaps_filled(fixed):
    torch.manual_seed(8)
    net = nn.Linear(3, 1)
    rain = seeded(8, 4, 3)
    rain[2, 1] = math.nan

    def loss(i):
        return net(torch.where(rain.isnan(), rain.nanmean(), rain)).square().mean()

    return net, train(net.parameters(), loss)


@healthy("the loss of a hinge becomes exactly zero: nothing is left to learn", steps=40)
def separated_clusters(fixed):
    torch.manual_seed(9)
    net = nn.Linear(2, 1)
    x = torch.cat([seeded(9, 8, 2) * 0.1 + 3, seeded(10, 8, 2) * 0.1 - 3])
    y = torch.cat([torch.ones(8), -torch.ones(8)])
    return net, train(net.parameters(), lambda i: (1 - y * net(x).squeeze(1)).clamp_min(0).mean(), lr=0.1)


@healthy("inf is the start of a running minimum")
def best_of_a_search(fixed):
    x = nn.Parameter(torch.tensor([0.3, 0.7]))
    best = torch.full((), math.inf)

    def loss(i):
        nonlocal best
        value = (x - 0.5).square().sum()
        best = torch.minimum(best, value.detach())
        return value + 0.0 * (best < 1)

    return None, train([x], loss)


@healthy("a constant feature is divided by a floored deviation")
def standardised_with_a_floor(fixed):
    torch.manual_seed(11)
    net = nn.Linear(3, 1)
    x = seeded(11, 6, 3)
    x[:, 2] = 5.0
    return net, train(net.parameters(), lambda i: net((x - x.mean(0)) / x.std(0).clamp_min(1e-6)).square().mean())


@healthy("weights of a cosmology that are negligible by design: exp(-100)")
def likelihoods_of_poor_models(fixed):
    theta = nn.Parameter(torch.tensor([0.1, 5.0]))
    chi = torch.tensor([1.0, 300.0])

    def loss(i):
        return -torch.logsumexp(-0.5 * chi * theta.square(), 0)

    return None, train([theta], loss, lr=1e-4)


@healthy("subnormal and zero tails of a kernel are meant")
def smoothing_kernel_with_zero_tails(fixed):
    height = nn.Parameter(torch.ones(5))
    at = torch.linspace(0, 100, 5)
    x = torch.linspace(0, 100, 21)

    def loss(i):
        return ((torch.exp(-((x[:, None] - at) ** 2)) * height).sum(1) - 1).square().mean()

    return None, train([height], loss)


@healthy("the model is evaluated with NaN for missing values and nan-aware means")
def nan_aware_metric(fixed):
    torch.manual_seed(12)
    net = nn.Linear(2, 1)
    x = seeded(12, 6, 2)
    shown = torch.full((6,), math.nan)

    def loss(i):
        y = net(x).squeeze(1)
        shown[: 2 + i % 3] = y.detach()[: 2 + i % 3]
        assert bool(shown.nanmean().isfinite())
        return y.square().mean()

    return net, train(net.parameters(), loss)


@healthy("bfloat16 under autocast with a normal loss")
def classifier_in_bfloat16(fixed):
    torch.manual_seed(13)
    net = nn.Sequential(nn.Linear(6, 12), nn.GELU(), nn.LayerNorm(12), nn.Linear(12, 3))
    x, y = seeded(13, 12, 6), torch.arange(12) % 3

    def loss(i):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            out = net(x)
        return F.cross_entropy(out.float(), y)

    return net, train(net.parameters(), loss, lr=0.05)


@healthy("log of zero in a branch that no gradient comes from, with a detached twin")
def logarithmic_display_of_a_spectrum(fixed):
    torch.manual_seed(14)
    net = nn.Linear(8, 8)
    x = seeded(14, 4, 8)

    def loss(i):
        out = net(x).relu()
        picture = out.detach().log10()
        assert picture.shape == (4, 8)
        return out.square().mean()

    return net, train(net.parameters(), loss)


@healthy("a mask of -1e4 in half precision stays in range")
def masked_scores_in_half(fixed):
    torch.manual_seed(15)
    q = nn.Linear(8, 8)
    x = seeded(15, 2, 5, 8)

    def loss(i):
        scores = (q(x) @ x.mT).half()
        scores = scores + torch.full((5, 5), -1e4).triu(1).half()
        return (scores.float().softmax(-1) @ x).square().mean()

    return q, train(q.parameters(), loss)


@healthy("a learning rate of zero in the first step, and gradients that are clipped by value")
def schedule_from_zero(fixed):
    torch.manual_seed(16)
    net = nn.Linear(4, 1)
    opt = torch.optim.AdamW(net.parameters(), lr=1e-2)
    schedule = torch.optim.lr_scheduler.LambdaLR(opt, lambda k: min(k / 3, 1.0))
    x = seeded(16, 8, 4)

    def step(i):
        opt.zero_grad()
        loss = (net(x) - x.sum(1, keepdim=True)).square().mean()
        loss.backward()
        nn.utils.clip_grad_value_(net.parameters(), 0.5)
        opt.step()
        schedule.step()
        return loss

    return net, step
