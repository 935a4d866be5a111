"""Drifts and healthy runs of two more blind rounds, written without regard to the forecast's rules.

The line that overflows (or underflows) first bears the comment `# overflows` or `# underflows`.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from courses import beside, seeded, trained
from drifts import Made
from torch import nn
from torch.nn import functional as F

Program = Callable[[], Made]

OVERFLOW: list[Program] = []
UNDERFLOW: list[Program] = []
HEALTHY: list[Program] = []


def overflow(program: Program) -> Program:
    OVERFLOW.append(program)
    return program


def underflow(program: Program) -> Program:
    UNDERFLOW.append(program)
    return program


def healthy(program: Program) -> Program:
    HEALTHY.append(program)
    return program


# First round: drifts that overflow ----------------------------------------------------------------


@overflow
def contrast_of_classes() -> Made:
    gen = seeded(401)
    net = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 16))

    def loss(i: int) -> torch.Tensor:
        y = torch.arange(16) % 4
        x = torch.randn(16, 8, generator=gen) * 0.3 + F.one_hot(y, 8)
        z = net(x)
        scores = z.half() @ z.half().T / 0.1  # overflows
        same = (y[:, None] == y[None]).float()
        return -(scores.float().log_softmax(1) * same).mean() - 6 * z.norm(dim=1).mean()

    return trained(net, loss, 250, lr=0.03, optimizer=torch.optim.Adam)


@overflow
def logit_scale_without_a_cap() -> Made:
    gen = seeded(402)
    net = nn.Linear(8, 8)
    net.log_scale = nn.Parameter(torch.tensor(2.6))

    def loss(i: int) -> torch.Tensor:
        x = torch.randn(12, 8, generator=gen)
        cosine = F.normalize(net(x), dim=1) @ F.normalize(x, dim=1).T
        logits = net.log_scale.exp().half() * cosine.half()
        shown = logits.square()  # overflows
        return -cosine.diagonal().mean() - net.log_scale + 0 * shown.float().mean()

    return trained(net, loss, 200, lr=0.04, optimizer=torch.optim.Adam)


@overflow
def sum_of_losses() -> Made:
    gen, total = seeded(403), [torch.zeros((), dtype=torch.float16)]
    net = nn.Linear(4, 1)

    def loss(i: int) -> torch.Tensor:
        x = torch.randn(64, 4, generator=gen)
        each = (net(x) - x.sum(1, keepdim=True) - torch.randn(64, 1, generator=gen)).square()
        total[0] = total[0] + 8 * each.detach().sum().half()  # overflows
        return each.mean()

    return trained(net, loss, 200, lr=0.02)


@overflow
def spread_by_welford() -> Made:
    gen, kept = seeded(404), torch.zeros(4, dtype=torch.float16)

    def of(i: int) -> torch.Tensor:
        x = 6 * torch.randn(32, 4, generator=gen)
        return kept.add_((x - x.mean(0)).square().sum(0).half())  # overflows

    return beside(of, 150, 404)


@overflow
def tokens_of_ragged_batches() -> Made:
    gen, seen = seeded(405), torch.zeros((), dtype=torch.float16)

    def of(i: int) -> torch.Tensor:
        lengths = torch.randint(5, 120, (16,), generator=gen)
        if i % 3:
            lengths = lengths // 4
        return seen.add_(lengths.sum())  # overflows

    return beside(of, 250, 405)


@overflow
def clock_in_half() -> Made:
    gen = seeded(406)

    def of(i: int) -> torch.Tensor:
        at = 900.0 + 410.0 * i + 60 * torch.rand(16, generator=gen)
        return at.half().sin()  # overflows

    return beside(of, 250, 406)


@overflow
def state_carried_over_batches() -> Made:
    gen, kept = seeded(407), [torch.zeros(4, 8)]
    net = nn.Linear(8, 8, bias=False)
    nn.init.orthogonal_(net.weight, gain=1.12)

    def loss(i: int) -> torch.Tensor:
        x = torch.randn(4, 8, generator=gen)
        state = (net(kept[0]) + x).half()  # overflows
        kept[0] = state.detach().float()
        return state.float().tanh().square().mean()

    return trained(net, loss, 200, lr=1e-3)


@overflow
def stack_of_gains() -> Made:
    gen = seeded(408)
    net = nn.Sequential(*(nn.Linear(6, 6, bias=False) for _ in range(4)))
    for layer in net:
        nn.init.orthogonal_(layer.weight)

    def loss(i: int) -> torch.Tensor:
        with torch.no_grad():
            for p in net.parameters():
                p.mul_(1.015 + 0.01 * torch.randn((), generator=gen))
        x = torch.randn(8, 6, generator=gen)
        h = net[2](net[1](net[0](x)))
        out = 8 * h.half()  # overflows
        return out.float().clamp(-1, 1).square().mean()

    return trained(net, loss, 200, lr=1e-4)


@overflow
def policy_logits_under_cycles() -> Made:
    gen = seeded(409)
    net = nn.Linear(6, 3)

    def loss(i: int) -> torch.Tensor:
        x = torch.randn(32, 6, generator=gen)
        logits = net(10 * x).half() * 16  # overflows
        gain = F.one_hot(x[:, :3].argmax(1), 3) - 1 / 3
        return -(logits.float() * gain).mean() / 16

    return trained(net, loss, 400, lr=lambda i: 0.4 + 0.35 * math.sin(i / 4))


@overflow
def attention_under_warm_up() -> Made:
    gen = seeded(410)
    net = nn.ModuleDict({"q": nn.Linear(8, 8), "k": nn.Linear(8, 8)})

    def loss(i: int) -> torch.Tensor:
        x = 3 * torch.randn(2, 6, 8, generator=gen)
        q, k = net["q"](x).half(), net["k"](x).half()
        scores = torch.einsum("bqd,bkd->bqk", q, k)  # overflows
        peak = scores.float().diagonal(dim1=1, dim2=2) - scores.float().mean(-1)
        return -peak.mean()

    return trained(net, loss, 250, lr=lambda i: 3e-4 * i, optimizer=torch.optim.Adam)


@overflow
def squares_of_an_unstable_descent() -> Made:
    gen = seeded(411)
    net = nn.Linear(4, 1)
    second = torch.zeros(1, 4, dtype=torch.float16)

    def loss(i: int) -> torch.Tensor:
        x = 2 * torch.randn(32, 4, generator=gen)
        if i:
            second.mul_(0.9).add_(0.1 * last[0].half().square())  # overflows
        return (net(x) - x.sum(1, keepdim=True)).square().mean()

    last = [torch.zeros(1, 4)]
    net.weight.register_hook(lambda g: last.__setitem__(0, g.detach().clone()))
    return trained(net, loss, 160, lr=0.258)


@overflow
def scale_doubled_every_eighth_step() -> Made:
    gen = seeded(412)
    net = nn.Linear(4, 1)

    def loss(i: int) -> torch.Tensor:
        x = torch.randn(32, 4, generator=gen)
        value = (net(x) - x[:, :1] - torch.randn(32, 1, generator=gen)).square().mean()
        scaled = value.half() * 2.0 ** (4 + i // 8)  # overflows
        return scaled.float() / 2.0 ** (4 + i // 8)

    return trained(net, loss, 200)


@overflow
def covariance_without_a_measurement() -> Made:
    seeded(413)
    move = torch.tensor([[1.0, 1.0], [0.0, 1.0]]).half()
    kept = [torch.eye(2).half()]

    def of(i: int) -> torch.Tensor:
        kept[0] = move @ kept[0] @ move.T + 0.5 * torch.eye(2).half()  # overflows
        return kept[0]

    return beside(of, 200, 413)


@overflow
def return_of_a_longer_episode() -> Made:
    gen = seeded(414)

    def of(i: int) -> torch.Tensor:
        rewards = (8 + 0.5 * i) * torch.rand(40 + 9 * i, generator=gen)
        return rewards.half().flip(0).cumsum(0)  # overflows

    return beside(of, 200, 414)


@overflow
def traces_that_do_not_fade() -> Made:
    gen, trace = seeded(415), torch.zeros(6, dtype=torch.float16)

    def of(i: int) -> torch.Tensor:
        feature = torch.rand(6, generator=gen) * (torch.rand(6, generator=gen) < 0.4)
        trace.mul_(1.06)  # overflows
        return trace.add_(feature.half())

    return beside(of, 300, 415)


@overflow
def lengths_of_a_curriculum() -> Made:
    gen = seeded(416)

    def of(i: int) -> torch.Tensor:
        length = int(64 * 1.4 ** (i // 10))
        x = torch.rand(4, length, generator=gen) * 4
        return x.half().sum(1)  # overflows

    return beside(of, 250, 416)


@overflow
def fourth_power_of_a_drifting_sensor() -> Made:
    gen = seeded(417)

    def of(i: int) -> torch.Tensor:
        x = 2 + 0.12 * i + 0.5 * torch.randn(24, generator=gen)
        return x.half() ** 4  # overflows

    return beside(of, 200, 417)


@overflow
def critic_norm() -> Made:
    gen = seeded(418)
    net = nn.Sequential(nn.Linear(4, 16), nn.LeakyReLU(0.2), nn.Linear(16, 1))

    def loss(i: int) -> torch.Tensor:
        real = torch.randn(16, 4, generator=gen) + 2
        fake = torch.randn(16, 4, generator=gen)
        a, b = net(real), net(fake)
        gap = (a - b).half().square()  # overflows
        return b.mean() - a.mean() + 0 * gap.float().mean()

    return trained(net, loss, 300, lr=0.01, optimizer=torch.optim.Adam)


@overflow
def inverse_variance_of_a_collapse() -> Made:
    gen = seeded(419)
    net = nn.Linear(6, 4, bias=False)

    def loss(i: int) -> torch.Tensor:
        z = net(torch.randn(32, 6, generator=gen))
        inverse = z.detach().var(0).half().reciprocal()  # overflows
        return z.square().sum(1).mean() + 0 * inverse.float().mean()

    return trained(net, loss, 250, lr=0.02)


@overflow
def precision_that_is_learned() -> Made:
    gen = seeded(420)
    net = nn.Linear(4, 1)
    net.log_var = nn.Parameter(torch.zeros(1))

    def loss(i: int) -> torch.Tensor:
        x = torch.randn(16, 4, generator=gen)
        precision = (-net.log_var.half()).exp()  # overflows
        error = (net(x) - net(x).detach()).square().mean()
        return error * precision.float().mean() + 0.5 * net.log_var.mean()

    return trained(net, loss, 250, lr=0.2)


@overflow
def temperature_to_zero() -> Made:
    gen = seeded(421)

    def of(i: int) -> torch.Tensor:
        temperature = 1 - i / 100
        scores = 300 * (0.8 + 0.2 * torch.rand(32, generator=gen))
        return (scores / max(temperature, 1e-4)).half().softmax(0)  # overflows

    return beside(of, 110, 421)


@overflow
def clusters_that_part() -> Made:
    gen = seeded(422)

    def of(i: int) -> torch.Tensor:
        a, b = torch.randn(2, 10, 4, generator=gen).half() * 3
        apart = a[:, None] - (b + 1.0 * i).half()[None]
        return apart.square().sum(-1)  # overflows

    return beside(of, 250, 422)


@overflow
def oscillator_by_forward_euler() -> Made:
    gen = seeded(423)
    kept = [torch.randn(2, 6, generator=gen)]

    def of(i: int) -> torch.Tensor:
        q, p = kept[0]
        kept[0] = torch.stack((q + 0.3 * p, p - 0.3 * q))
        return kept[0][0].half().square()  # overflows

    return beside(of, 250, 423)


@overflow
def counts_of_a_histogram() -> Made:
    gen, counts = seeded(424), torch.zeros(8, dtype=torch.float16)

    def of(i: int) -> torch.Tensor:
        new = torch.histc(torch.randn(2000, generator=gen), 8, -3, 3)
        return counts.add_(new)  # overflows

    return beside(of, 250, 424)


@overflow
def compound_return() -> Made:
    gen, wealth = seeded(425), torch.ones(12, dtype=torch.float16)

    def of(i: int) -> torch.Tensor:
        factor = (0.08 + 0.1 * torch.randn(12, generator=gen)).exp()
        return wealth.mul_(factor)  # overflows

    return beside(of, 160, 425)


@overflow
def ratio_to_an_old_policy() -> Made:
    gen = seeded(426)

    def of(i: int) -> torch.Tensor:
        gap = 0.09 * i * (1 + 0.1 * torch.randn(32, generator=gen))
        return gap.half().exp()  # overflows

    return beside(of, 200, 426)


@overflow
def momentum_that_keeps_all() -> Made:
    gen, kept = seeded(427), [torch.zeros(4), torch.zeros(4)]

    def of(i: int) -> torch.Tensor:
        kept[0] = kept[0] + 8 * (1 + 0.5 * torch.randn(4, generator=gen))
        kept[1] = kept[1] + kept[0]
        return kept[1].half() * 1.0  # overflows

    return beside(of, 200, 427)


# First round: drifts that underflow ---------------------------------------------------------------


@underflow
def bias_correction_in_half() -> Made:
    seeded(431)
    beta = torch.tensor(0.85)

    def of(i: int) -> torch.Tensor:
        return (beta**i).half()  # underflows

    return beside(of, 150, 431)


@underflow
def bandwidth_by_jumps() -> Made:
    gen = seeded(432)

    def of(i: int) -> torch.Tensor:
        width = 2 * 0.85 ** (i // 6)
        gap = 1 + 0.2 * torch.rand(24, generator=gen)
        return (-gap / (2 * width**2)).exp().half()  # underflows

    return beside(of, 120, 432)


@underflow
def likelihood_of_a_longer_sentence() -> Made:
    gen = seeded(433)
    net = nn.Linear(4, 8)

    def loss(i: int) -> torch.Tensor:
        x = torch.randn(4 + i, 4, generator=gen)
        chance = (8 * net(x)).softmax(1).amax(1)
        whole = chance.half().prod()  # underflows
        return net(x).square().mean() + 0 * whole.float()

    return trained(net, loss, 60)


@underflow
def rate_times_gradient_in_half() -> Made:
    gen = seeded(434)
    net = nn.Linear(4, 1)

    def step(i: int) -> torch.Tensor:
        x = torch.randn(16, 4, generator=gen)
        loss = (net(x) - x[:, :1] - torch.randn(16, 1, generator=gen)).square().mean()
        net.zero_grad()
        loss.backward()
        with torch.no_grad():
            net.weight.sub_(net.weight.grad.half() * (0.1 * 0.87**i))  # underflows
        return loss

    return net, step, 160


@underflow
def variance_under_decay() -> Made:
    gen = seeded(435)
    net = nn.Linear(6, 4, bias=False)

    def loss(i: int) -> torch.Tensor:
        with torch.no_grad():
            net.weight.mul_(0.93)
        z = net(torch.randn(32, 6, generator=gen)).half()
        spread = (z - z.mean(0)).square()  # underflows
        return z.float().square().mean() + 0 * spread.float().sum()

    return trained(net, loss, 250, lr=1e-3)


@underflow
def chance_of_a_rare_class() -> Made:
    gen = seeded(436)

    def of(i: int) -> torch.Tensor:
        gap = 0.15 * i + 0.6 * torch.randn(16, generator=gen)
        return (-gap).half().exp()  # underflows

    return beside(of, 200, 436)


@underflow
def attention_to_far_tokens() -> Made:
    gen = seeded(437)

    def of(i: int) -> torch.Tensor:
        slope = 0.01 * (i // 4) ** 1.5
        far = torch.arange(12.0, 20.0) * slope + torch.rand(8, generator=gen)
        return (-far).half().exp()  # underflows

    return beside(of, 150, 437)


@underflow
def error_without_noise() -> Made:
    gen = seeded(438)
    net = nn.Linear(6, 1)

    def loss(i: int) -> torch.Tensor:
        x = torch.randn(64, 6, generator=gen)
        error = net(x) - x.sum(1, keepdim=True)
        shown = error.half().square()  # underflows
        return error.square().mean() + 0 * shown.float().mean()

    return trained(net, loss, 250, lr=0.04)


@underflow
def discount_by_episodes() -> Made:
    gen, factor = seeded(439), torch.ones(5, dtype=torch.float16)

    def of(i: int) -> torch.Tensor:
        ended = 0.4 if i % 5 == 4 else 0.98
        return factor.mul_(ended + 0.02 * torch.rand(5, generator=gen))  # underflows

    return beside(of, 200, 439)


@underflow
def branch_that_dies() -> Made:
    gen = seeded(440)
    net = nn.Linear(6, 6)
    net.gate = nn.Parameter(torch.ones(1))

    def loss(i: int) -> torch.Tensor:
        with torch.no_grad():
            net.gate.mul_(0.88 + 0.06 * torch.rand((), generator=gen))
        x = torch.randn(8, 6, generator=gen)
        branch = net(x).half() * net.gate.half()  # underflows
        return (x + branch.float()).square().mean()

    return trained(net, loss, 250, lr=1e-9)


@underflow
def importance_weights_of_particles() -> Made:
    gen, weight = seeded(441), torch.ones(30, dtype=torch.float16)

    def of(i: int) -> torch.Tensor:
        error = torch.randn(30, generator=gen)
        return weight.mul_((-0.3 * error.square()).exp().half())  # underflows

    return beside(of, 250, 441)


@underflow
def survival_with_plateaus() -> Made:
    gen, alive = seeded(442), torch.ones(8)

    def of(i: int) -> torch.Tensor:
        hazard = 0.02 + (0.35 if i % 8 < 4 else 0.0) + 0.02 * torch.rand(8, generator=gen)
        return alive.mul_(1 - hazard).half()  # underflows

    return beside(of, 200, 442)


@underflow
def noise_that_anneals_in_cycles() -> Made:
    gen = seeded(443)

    def of(i: int) -> torch.Tensor:
        sigma = 0.93**i * (1 + 0.5 * math.sin(i / 3))
        return (sigma * torch.randn(16, generator=gen)).half().square()  # underflows

    return beside(of, 250, 443)


@underflow
def distance_to_the_target_network() -> Made:
    gen = seeded(444)
    net, target = nn.Linear(6, 4), nn.Linear(6, 4)

    def loss(i: int) -> torch.Tensor:
        with torch.no_grad():
            for p, q in zip(target.parameters(), net.parameters(), strict=True):
                p.lerp_(q, 0.08)
        x = torch.randn(16, 6, generator=gen)
        gap = (net(x) - target(x)).half().square()  # underflows
        return net(x).square().mean() + 0 * gap.float().mean()

    return trained(net, loss, 250, lr=1e-9)


# First round: healthy -----------------------------------------------------------------------------


def shown(course: Callable[[int, torch.Generator], torch.Tensor | float], seed: int) -> Made:
    """A course in float16, under a product that would overflow with it."""

    def of(i: int) -> torch.Tensor:
        return torch.as_tensor(course(i, gen), dtype=torch.float32).half() * 1.0

    gen = torch.Generator().manual_seed(seed)
    return beside(of, 200, seed)


COURSES: dict[str, Callable[[int, torch.Generator], torch.Tensor | float]] = {
    "approach": lambda i, g: 26000 * (1 - 0.96**i),
    "approach_under_noise": lambda i, g: (
        20000 * (1 - 0.95**i) * (1 + 0.08 * torch.randn(8, generator=g))
    ),
    "logistic": lambda i, g: 2000 + 16000 / (1 + math.exp(-(i - 60) / 15)),
    "logarithm": lambda i, g: 4500 * math.log1p(i) * (1 + 0.03 * torch.randn(4, generator=g)),
    "triangle": lambda i, g: 3000 + 1500 * min(i % 40, 40 - i % 40),
    "counter_reset": lambda i, g: 450.0 * (i % 40 + 1),
    "spikes": lambda i, g: (
        2500 * (12 if i in (31, 77, 130) else 1) * (1 + torch.rand(4, generator=g))
    ),
    "stairs_that_end": lambda i, g: 500.0 * 2 ** min(i // 15, 5),
    "decaying_pace": lambda i, g: 3000 * sum(1 / (1 + k / 12) for k in range(i)) / 4,
    "beats": lambda i, g: 9000 * (1.2 + math.sin(i / 6) * math.sin(i / 31)),
    "warm_up": lambda i, g: 12000 * min(i / 50, 1.0) * (1 + 0.02 * torch.randn(4, generator=g)),
    "shrinks_to_a_floor": lambda i, g: 0.93**i + 2e-4,
    "shrinks_to_a_floor_under_noise": lambda i, g: (
        (0.9**i + 1e-4) * (1 + 0.2 * torch.rand(8, generator=g))
    ),
    "power_law": lambda i, g: 1.0 / (1 + i) ** 1.5 * (1 + 0.2 * torch.randn(8, generator=g)),
    "cosine_with_restarts": lambda i, g: 1e-4 + 0.1 * (1 + math.cos(math.pi * (i % 50) / 50)),
    "temperature": lambda i, g: 1500 / (0.07 + 0.93 * 0.95**i),
    "resonance": lambda i, g: 15000 * (1 - 0.97**i) * math.sin(i / 2),
    "queue_that_fills": lambda i, g: (torch.rand(64, generator=g) * 8).sum() * min(i + 1, 60),
}


def coursed(name: str, seed: int) -> Program:
    """The program of a course, under its name."""

    def program() -> Made:
        return shown(COURSES[name], seed)

    program.__name__ = name
    return program


HEALTHY += [coursed(name, 451 + k) for k, name in enumerate(COURSES)]


@healthy
def heavy_tails() -> Made:
    gen = seeded(471)

    def of(i: int) -> torch.Tensor:
        x = torch.randn(32, generator=gen) / torch.rand(32, generator=gen).clamp(min=0.02)
        return (40 * x).half().abs().sum()

    return beside(of, 200, 471)


@healthy
def random_walk() -> Made:
    gen, at = seeded(472), torch.full((6,), 9000.0).half()

    def of(i: int) -> torch.Tensor:
        return at.add_(400 * torch.randn(6, generator=gen))

    return beside(of, 200, 472)


@healthy
def average_that_converges() -> Made:
    gen, mean = seeded(473), torch.zeros(4, dtype=torch.float16)

    def of(i: int) -> torch.Tensor:
        return mean.lerp_((24000 + 3000 * torch.randn(4, generator=gen)).half(), 0.05)

    return beside(of, 200, 473)


@healthy
def scale_clipped_at_a_hundred() -> Made:
    gen = seeded(474)
    net = nn.Linear(8, 8)
    net.log_scale = nn.Parameter(torch.tensor(2.6))

    def loss(i: int) -> torch.Tensor:
        x = torch.randn(12, 8, generator=gen)
        cosine = F.normalize(net(x), dim=1) @ F.normalize(x, dim=1).T
        logits = net.log_scale.clamp(max=math.log(100)).exp().half() * cosine.half()
        return F.cross_entropy(logits.float(), torch.arange(12)) - 0.05 * net.log_scale

    return trained(net, loss, 200, lr=0.03, optimizer=torch.optim.Adam)


@healthy
def contrast_with_normalised_views() -> Made:
    gen = seeded(475)
    net = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 16))

    def loss(i: int) -> torch.Tensor:
        x = torch.randn(16, 8, generator=gen)
        a, b = (
            F.normalize(net(x + 0.1 * torch.randn(16, 8, generator=gen)), dim=1) for _ in range(2)
        )
        return F.cross_entropy((a.half() @ b.half().T / 0.05).float(), torch.arange(16))

    return trained(net, loss, 200, lr=0.01, optimizer=torch.optim.Adam)


@healthy
def logits_under_label_noise() -> Made:
    gen = seeded(476)
    net = nn.Sequential(nn.Linear(6, 32), nn.ReLU(), nn.Linear(32, 3))

    def loss(i: int) -> torch.Tensor:
        x = torch.randn(64, 6, generator=gen)
        y = x[:, :3].argmax(1)
        y = torch.where(torch.rand(64, generator=gen) < 0.2, (y + 1) % 3, y)
        with torch.autocast("cpu", dtype=torch.float16):
            logits = net(4 * x)
        return F.cross_entropy(logits.float(), y)

    return trained(net, loss, 200, lr=0.02, optimizer=torch.optim.Adam)


@healthy
def norms_held_by_decay() -> Made:
    gen = seeded(477)
    net = nn.Embedding(12, 16)

    def loss(i: int) -> torch.Tensor:
        e = net(torch.randperm(12, generator=gen)[:8])
        scores = e.half() @ e.half().T
        return -e.norm(dim=1).mean() + 0 * scores.float().mean()

    return trained(net, loss, 200, lr=2.0, weight_decay=0.03)


@healthy
def values_below_a_discount_of_one() -> Made:
    gen = seeded(478)
    net = nn.Linear(4, 1)

    def loss(i: int) -> torch.Tensor:
        x = torch.rand(32, 4, generator=gen)
        value = net(x)
        shown = (value * 100).half() * 1.0
        return F.mse_loss(value, 10 + 0.9 * value.detach()) + 0 * shown.float().mean()

    return trained(net, loss, 200, lr=0.2)


@healthy
def velocity_that_saturates() -> Made:
    gen, speed = seeded(479), torch.zeros(5, dtype=torch.float16)

    def of(i: int) -> torch.Tensor:
        return speed.mul_(0.96).add_((700 + 250 * torch.randn(5, generator=gen)).half())

    return beside(of, 200, 479)


@healthy
def running_variance_of_raw_features() -> Made:
    gen = seeded(480)
    net = nn.Sequential(nn.BatchNorm1d(6), nn.Linear(6, 2))

    def loss(i: int) -> torch.Tensor:
        x = 120 * torch.randn(32, 6, generator=gen)
        shown = net[0].running_var.half() * 1.0
        return (net(x) - x[:, :2] / 100).square().mean() + 0 * shown.float().mean()

    return trained(net, loss, 200, lr=0.05)


@healthy
def damped_and_driven() -> Made:
    gen, kept = seeded(481), [torch.zeros(2, 6)]

    def of(i: int) -> torch.Tensor:
        q, p = kept[0]
        p = 0.97 * p - 0.2 * q + 300 * math.sin(0.44 * i) + 20 * torch.randn(6, generator=gen)
        kept[0] = torch.stack((q + 0.2 * p, p))
        return kept[0].half() * 2

    return beside(of, 200, 481)


@healthy
def inertia_of_clusters() -> Made:
    gen = seeded(482)
    net = nn.Embedding(4, 3)
    middle = 3 * torch.randn(4, 3, generator=gen)

    def loss(i: int) -> torch.Tensor:
        x = middle.repeat(8, 1) + 0.05 * torch.randn(32, 3, generator=gen)
        return torch.cdist(x, net.weight).half().square().amin(1).float().mean()

    return trained(net, loss, 200, lr=0.1)


@healthy
def entropy_that_falls() -> Made:
    gen = seeded(483)
    net = nn.Linear(4, 3)

    def loss(i: int) -> torch.Tensor:
        x = torch.randn(32, 4, generator=gen)
        chance = net(x).softmax(1).half()
        reward = torch.tensor([1.0, 0.9, 0.2]).half()
        return -(chance @ reward).float().mean()

    return trained(net, loss, 200, lr=1.0)


@healthy
def smoothed_labels() -> Made:
    gen = seeded(484)
    net = nn.Linear(4, 2)

    def loss(i: int) -> torch.Tensor:
        x = torch.randn(32, 4, generator=gen)
        with torch.autocast("cpu", dtype=torch.float16):
            logits = net(x)
        y = (x[:, 0] > 0).long()
        return F.cross_entropy(logits.float(), y, label_smoothing=0.1)

    return trained(net, loss, 200, lr=0.5)


@healthy
def student_of_a_moving_teacher() -> Made:
    gen = seeded(485)
    net, target = nn.Linear(6, 4), nn.Linear(6, 4)

    def loss(i: int) -> torch.Tensor:
        with torch.no_grad():
            for p, q in zip(target.parameters(), net.parameters(), strict=True):
                p.lerp_(q, 0.1)
        x = torch.randn(16, 6, generator=gen)
        gap = (net(x) - target(x)).half().square()
        return (net(x) - x[:, :4]).square().mean() + gap.float().mean()

    return trained(net, loss, 200, lr=0.02, optimizer=torch.optim.Adam)


@healthy
def rate_by_cosine() -> Made:
    gen = seeded(486)
    net = nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 1))

    def loss(i: int) -> torch.Tensor:
        x = torch.randn(32, 6, generator=gen)
        return (net(x) - x[:, :1].sin()).square().mean()

    return trained(net, loss, 160, lr=lambda i: 0.05 * (1.001 + math.cos(math.pi * i / 160)))


@healthy
def small_attention_under_autocast() -> Made:
    gen = seeded(487)
    net = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True)

    def loss(i: int) -> torch.Tensor:
        x = torch.randn(4, 6, 16, generator=gen)
        with torch.autocast("cpu", dtype=torch.float16):
            out = net(x)
        return (out.float() - x.roll(1, 1)).square().mean()

    return trained(net, loss, 80, lr=lambda i: 1e-4 * min(i + 1, 30), optimizer=torch.optim.AdamW)


@healthy
def recurrent_net_with_clipping() -> Made:
    gen = seeded(488)
    net = nn.GRU(4, 12, batch_first=True)

    def loss(i: int) -> torch.Tensor:
        nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        x = torch.randn(6, 8, 4, generator=gen)
        return (net(x)[0].half().float()[..., :4] - 0.5 * x.cumsum(1)).square().mean()

    return trained(net, loss, 80, lr=0.02, optimizer=torch.optim.Adam)


@healthy
def adversaries_that_circle() -> Made:
    gen = seeded(489)
    net = nn.Linear(3, 3)

    def step(i: int) -> torch.Tensor:
        net.zero_grad()
        x = torch.randn(16, 3, generator=gen)
        loss = (net(x).half() * 50).float().mean() / 50 + 0.02 * net.weight.square().sum()
        loss.backward()
        with torch.no_grad():
            w, g = net.weight, net.weight.grad
            w.add_(0.3 * torch.stack((-w[1], w[0], 0 * w[2])) - 0.3 * g - 0.045 * w)
            net.bias.mul_(0.9)
        return loss

    return net, step, 200


@healthy
def embeddings_that_slow_down() -> Made:
    gen = seeded(490)
    net = nn.Embedding(12, 16)

    def loss(i: int) -> torch.Tensor:
        e = net(torch.randperm(12, generator=gen)[:8])
        scores = e.half() @ e.half().T
        return -e.norm(dim=1).mean() + 0 * scores.float().mean()

    return trained(net, loss, 200, lr=lambda i: 3.0 / (1 + i / 15))


@healthy
def second_moment_in_half() -> Made:
    gen = seeded(491)
    net, second = nn.Linear(4, 1), torch.zeros(1, 4, dtype=torch.float16)
    net.weight.register_hook(
        lambda g: second.mul_(0.95).add_((9 * g).half().square(), alpha=0.05)[:0].sum() + g
    )

    def loss(i: int) -> torch.Tensor:
        x = torch.randn(32, 4, generator=gen)
        noise = torch.randn(32, 1, generator=gen)
        return (net(x) - 5 * x.sum(1, keepdim=True) - noise).square().mean()

    return trained(net, loss, 200, lr=0.03)


@healthy
def autoencoder_in_bfloat16() -> Made:
    gen = seeded(492)
    net = nn.Sequential(nn.Linear(8, 3), nn.GELU(), nn.Linear(3, 8))

    def loss(i: int) -> torch.Tensor:
        x = torch.randn(32, 3, generator=gen) @ torch.ones(3, 8).cumsum(1)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            out = net(x / 8)
        return (out.float() - x / 8).square().mean()

    return trained(net, loss, 150, lr=0.02, optimizer=torch.optim.Adam)


# Second round -------------------------------------------------------------------------------------

Course = Callable[[int, torch.Generator], torch.Tensor | float]


@overflow
def sum_of_attention_in_a_growing_cache() -> Made:
    gen = seeded(501)
    net = nn.Linear(8, 8)

    def loss(i: int) -> torch.Tensor:
        x = torch.randn(20 + 6 * i, 8, generator=gen)
        values = net(x).half().abs() * (4 + 0.6 * i)
        total = values.sum(0)  # overflows
        return net(x).square().mean() + 0 * total.float().mean()

    return trained(net, loss, 250, lr=1e-4)


@overflow
def dot_products_of_embeddings_by_momentum() -> Made:
    gen = seeded(502)
    net = nn.Embedding(16, 12)

    def loss(i: int) -> torch.Tensor:
        e = net(torch.randperm(16, generator=gen)[:10])
        scores = (e.half() * e.half()).sum(1) * 4  # overflows
        return -e.norm(dim=1).mean() + 0 * scores.float().mean()

    return trained(net, loss, 300, lr=1.0, momentum=0.9)


@overflow
def steps_of_a_divergent_quadratic() -> Made:
    gen = seeded(503)
    net = nn.Linear(3, 1, bias=False)
    curve = torch.tensor([1.0, 5.0, 10.3])

    def loss(i: int) -> torch.Tensor:
        w = net.weight[0]
        shown = w.half() * 3.0  # overflows
        noise = torch.randn(3, generator=gen)
        return 0.5 * (curve * w * w).sum() + (noise * w).sum() + 0 * shown.float().mean()

    return trained(net, loss, 250, lr=0.2)


@overflow
def bytes_seen_by_a_meter() -> Made:
    gen, seen = seeded(504), torch.zeros((), dtype=torch.float16)

    def of(i: int) -> torch.Tensor:
        return seen.add_(torch.rand((), generator=gen) ** 3 * 2400)  # overflows

    return beside(of, 250, 504)


@overflow
def cube_of_a_learned_radius() -> Made:
    gen = seeded(505)
    net = nn.Linear(4, 1)
    net.radius = nn.Parameter(torch.tensor(2.0))

    def loss(i: int) -> torch.Tensor:
        x = torch.randn(16, 4, generator=gen)
        volume = net.radius.half() ** 3 * 4.2  # overflows
        return net(x).square().mean() - net.radius + 0 * volume.float()

    return trained(net, loss, 250, lr=lambda i: 0.2 + 0.15 * math.cos(i / 5))


@overflow
def doubling_on_success() -> Made:
    gen, size = seeded(506), [4.0]

    def of(i: int) -> torch.Tensor:
        size[0] *= 1.3 if torch.rand((), generator=gen) < 0.4 else 1.0
        return (torch.rand(8, generator=gen) + 1).half() * size[0]  # overflows

    return beside(of, 200, 506)


@overflow
def inverse_of_a_falling_eigenvalue() -> Made:
    gen = seeded(507)

    def of(i: int) -> torch.Tensor:
        least = 0.9**i * (1 + 0.2 * torch.rand(4, generator=gen))
        return least.half().reciprocal() * 0.5  # overflows

    return beside(of, 140, 507)


@overflow
def hidden_state_by_plateaus() -> Made:
    gen, state = seeded(508), [torch.ones(6)]

    def of(i: int) -> torch.Tensor:
        gain = 1.18 if i % 10 < 5 else 1.0
        state[0] = state[0] * gain + 0.1 * torch.randn(6, generator=gen)
        return state[0].half() * 2  # overflows

    return beside(of, 200, 508)


@overflow
def value_targets_that_chase_the_largest() -> Made:
    gen = seeded(509)
    net = nn.Linear(4, 3)

    def loss(i: int) -> torch.Tensor:
        x = torch.rand(32, 4, generator=gen)
        q = net(x)
        target = 1.05 * q.detach().amax(1, keepdim=True) + 1
        shown = q.half() * 4.0  # overflows
        return F.smooth_l1_loss(q, target.expand_as(q)) + 0 * shown.float().mean()

    return trained(net, loss, 256, lr=lambda i: 1.0 + 0.8 * i, optimizer=torch.optim.SGD)


@overflow
def energy_of_a_growing_lattice() -> Made:
    gen = seeded(510)

    def of(i: int) -> torch.Tensor:
        spins = torch.rand(10 + 2 * i, 10 + 2 * i, generator=gen).half()
        return (spins * spins.roll(1, 0)).sum() * 2  # overflows

    return beside(of, 250, 510)


@underflow
def product_of_gates() -> Made:
    gen, memory = seeded(521), [torch.ones(10)]

    def of(i: int) -> torch.Tensor:
        memory[0] = memory[0] * torch.sigmoid(1.2 + torch.randn(10, generator=gen))
        return memory[0].half()  # underflows

    return beside(of, 200, 521)


@underflow
def softmax_of_a_growing_margin() -> Made:
    gen = seeded(522)
    net = nn.Linear(4, 2)

    def loss(i: int) -> torch.Tensor:
        x = torch.rand(16, 4, generator=gen) + 0.5
        logits = net(x)
        other = (logits[:, 0] - logits[:, 1]).half().exp()  # underflows
        return (logits[:, 0] - logits[:, 1]).mean() + 0 * other.float().mean()

    return trained(net, loss, 200, lr=0.02)


@underflow
def rate_by_halves() -> Made:
    gen = seeded(523)

    def of(i: int) -> torch.Tensor:
        rate = 0.1 * 0.5 ** (i // 7)
        return (rate * torch.randn(8, generator=gen)).half()  # underflows

    return beside(of, 200, 523)


@underflow
def distance_to_the_fixed_point() -> Made:
    gen, at = seeded(524), [torch.randn(6, generator=seeded(524))]

    def of(i: int) -> torch.Tensor:
        new = at[0] * (0.9 + 0.05 * torch.rand(6, generator=gen))
        gap = (new - at[0]).half() * 0.5  # underflows
        at[0] = new
        return gap

    return beside(of, 256, 524)


@underflow
def prior_over_a_longer_path() -> Made:
    gen = seeded(525)

    def of(i: int) -> torch.Tensor:
        chance = 0.55 + 0.4 * torch.rand(4, 3 + i, generator=gen)
        return chance.half().prod(1)  # underflows

    return beside(of, 90, 525)


@underflow
def kernel_of_clouds_that_part() -> Made:
    gen = seeded(526)

    def of(i: int) -> torch.Tensor:
        gap = 0.045 * i + 0.1 * torch.randn(12, generator=gen)
        return (-(gap**2)).exp().half()  # underflows

    return beside(of, 140, 526)


@underflow
def weight_of_an_old_task() -> Made:
    gen = seeded(527)
    net = nn.Linear(4, 2)

    def loss(i: int) -> torch.Tensor:
        x = torch.randn(16, 4, generator=gen)
        old = net(x).half().square() * (0.85**i * (1 + 0.5 * (i % 6 == 0)))  # underflows
        return net(x).square().mean() + old.float().mean()

    return trained(net, loss, 200, lr=1e-4)


@underflow
def variance_of_a_cooling_chain() -> Made:
    gen, heat = seeded(528), [1.0]

    def of(i: int) -> torch.Tensor:
        heat[0] *= 0.97 if torch.rand((), generator=gen) < 0.5 else 0.86
        return (heat[0] * torch.randn(40, generator=gen)).half().square()  # underflows

    return beside(of, 200, 528)


@underflow
def attention_decay_over_distance() -> Made:
    gen = seeded(529)

    def of(i: int) -> torch.Tensor:
        rate = 0.8 + 0.15 * torch.rand(8, generator=gen)
        return (rate.half() ** (1 + i)) * 0.5  # underflows

    return beside(of, 256, 529)


@underflow
def signal_through_a_deeper_stack() -> Made:
    gen = seeded(530)
    net = nn.Linear(6, 6, bias=False)

    def loss(i: int) -> torch.Tensor:
        x = torch.randn(8, 6, generator=gen)
        with torch.no_grad():
            net.weight.mul_(0.95)
        out = net(net(x)).half() * 0.5  # underflows
        return net(x).square().mean() + 0 * out.float().mean()

    return trained(net, loss, 256, lr=1e-6)


MORE: dict[str, Course] = {
    "square_root_of_time": lambda i, g: (
        1400 * math.sqrt(i) * (1 + 0.05 * torch.randn(4, generator=g))
    ),
    "overshoot": lambda i, g: 15000 * (1 - math.exp(-i / 12) * math.cos(i / 9)),
    "two_time_scales": lambda i, g: 8000 * (1 - 0.8**i) + 14000 * (1 - 0.98**i),
    "s_curve_twice": lambda i, g: (
        1000 + 6000 / (1 + math.exp(40 - i)) + 9000 / (1 + math.exp((110 - i) / 6))
    ),
    "hours_of_the_day": lambda i, g: (
        9000 + 7000 * math.sin(i / 24 * math.tau) + 300 * torch.randn(6, generator=g)
    ),
    "linear_to_a_cap": lambda i, g: min(180.0 * i, 18000.0),
    "jumps_around_a_level": lambda i, g: (
        12000.0 * (1 + 0.4 * torch.sign(torch.randn((), generator=g)))
    ),
    "growth_then_decline": lambda i, g: (
        400 * i * math.exp(-i / 50) * (1 + torch.rand(4, generator=g))
    ),
    "falls_as_one_over_time": lambda i, g: (1 + 0.1 * torch.randn(6, generator=g)) / (1 + i),
    "falls_to_noise": lambda i, g: 0.85**i + 5e-4 * torch.rand(8, generator=g),
    "halved_five_times": lambda i, g: 0.1 * 0.5 ** min(i // 20, 5) * torch.rand(8, generator=g),
    "temperature_linear_to_a_floor": lambda i, g: 200 / max(1 - i / 120, 0.05),
    "rare_large_batches": lambda i, g: (
        (torch.rand(8, generator=g) * 2000).sum() * (3 if i % 29 == 28 else 1)
    ),
    "average_of_spikes": lambda i, g: (
        sum(9000 * 0.9 ** (i - k) for k in (20, 90, 150) if k <= i) + 40
    ),
}
HEALTHY += [coursed(name, 551 + k) for k, name in enumerate(MORE)]
COURSES.update(MORE)


@healthy
def classifier_that_becomes_sure() -> Made:
    gen = seeded(571)
    net = nn.Sequential(nn.Linear(6, 32), nn.ReLU(), nn.Linear(32, 3))

    def loss(i: int) -> torch.Tensor:
        y = torch.randint(0, 3, (32,), generator=gen)
        x = F.one_hot(y, 6) * 2 + 0.5 * torch.randn(32, 6, generator=gen)
        with torch.autocast("cpu", dtype=torch.float16):
            logits = net(x)
        return F.cross_entropy(logits.float(), y)

    return trained(net, loss, 150, lr=3e-3, optimizer=torch.optim.AdamW)


@healthy
def regression_on_prices() -> Made:
    gen = seeded(572)
    net = nn.Linear(5, 1)

    def loss(i: int) -> torch.Tensor:
        x = torch.randn(32, 5, generator=gen)
        price = 9000 + 800 * x.sum(1, keepdim=True)
        out = net(x)
        shown = out.half() * 1.5
        return F.smooth_l1_loss(out, price) + 0 * shown.float().mean()

    return trained(net, loss, 200, lr=lambda i: 250 * 0.98**i)


@healthy
def autoencoder_with_a_scheduler() -> Made:
    gen = seeded(573)
    net = nn.Sequential(nn.Linear(8, 4), nn.Tanh(), nn.Linear(4, 8))

    def loss(i: int) -> torch.Tensor:
        x = torch.randn(32, 8, generator=gen)
        with torch.autocast("cpu", dtype=torch.float16):
            out = net(x)
        return (out.float() - x).square().mean()

    return trained(net, loss, 160, lr=lambda i: 0.1 * 0.7 ** (i // 25))


@healthy
def weights_that_grow_to_a_bound() -> Made:
    gen = seeded(574)
    net = nn.Linear(6, 2)

    def loss(i: int) -> torch.Tensor:
        with torch.no_grad():
            net.weight.clamp_(-30, 30)
        x = torch.randn(32, 6, generator=gen)
        out = net(x).half() * 40
        return -(out.float() * x[:, :2]).mean() / 40

    return trained(net, loss, 200, lr=1.0)


@healthy
def entropy_bonus_that_fades() -> Made:
    gen = seeded(575)
    net = nn.Linear(4, 3)

    def loss(i: int) -> torch.Tensor:
        x = torch.randn(32, 4, generator=gen)
        chance = net(x).softmax(1)
        bonus = (chance * chance.log()).sum(1).mean().half() * max(0.95**i, 0.01)
        return F.mse_loss(chance, (2 * x[:, :3]).softmax(1)) + bonus.float()

    return trained(net, loss, 200, lr=0.3)


@healthy
def teacher_by_moving_average() -> Made:
    gen = seeded(576)
    net, teacher = nn.Linear(6, 3), nn.Linear(6, 3)

    def loss(i: int) -> torch.Tensor:
        with torch.no_grad():
            for p, q in zip(teacher.parameters(), net.parameters(), strict=True):
                p.lerp_(q, 0.05)
        x = torch.randn(24, 6, generator=gen)
        gap = (net(x) - teacher(x)).half().square().mean()
        return (net(x) - 3 * x[:, :3]).square().mean() + gap.float()

    return trained(net, loss, 200, lr=lambda i: 0.03 * (1 + math.cos(i / 10)))
