"""Forty-five drifts and forty-eight healthy runs, written for the forecast without a look at its rules.

The line that overflows (or underflows) first bears the comment `# overflows` or `# underflows`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from drifts import Made, Step
from torch import nn
from torch.nn import functional as F


def trained(
    net: nn.Module,
    loss: Step,
    steps: int,
    lr: float | Callable[[int], float] = 1e-3,
    optimizer: Any = torch.optim.SGD,
    **options: Any,
) -> Made:
    """The usual training step around a loss; `lr` may be a schedule."""
    opt = optimizer(net.parameters(), lr=lr(0) if callable(lr) else lr, **options)

    def step(i: int) -> torch.Tensor:
        if callable(lr):
            for group in opt.param_groups:
                group["lr"] = lr(i)
        opt.zero_grad()
        value = loss(i)
        value.backward()
        opt.step()
        return value

    return net, step, steps


def beside(of: Step, steps: int, seed: int) -> Made:
    """A small regression beside which `of` is computed at each step, as a metric or a state."""
    gen = seeded(seed)
    net = nn.Linear(4, 1)

    def loss(i: int) -> torch.Tensor:
        x = torch.randn(8, 4, generator=gen)
        of(i)
        return (net(x) - x.sum(1, keepdim=True)).square().mean()

    return trained(net, loss, steps, lr=1e-2)


def seeded(seed: int) -> torch.Generator:
    torch.manual_seed(seed)
    return torch.Generator().manual_seed(seed)


# Drifts that overflow ---------------------------------------------------------------------------


def two_towers() -> Made:
    gen = seeded(101)
    net = nn.ModuleDict({"user": nn.Embedding(40, 16), "item": nn.Embedding(40, 16)})

    def loss(i: int) -> torch.Tensor:
        ids = torch.randperm(40, generator=gen)[:16]
        u, v = net["user"](ids), net["item"](ids)
        scores = (u.half() @ v.half().T) / 0.02  # overflows
        return F.softplus(-1e-3 * scores.float().diagonal()).mean() - u.norm(dim=-1).mean()

    return trained(net, loss, 250, lr=0.17, optimizer=torch.optim.Adam)


def attention_entropy_collapse() -> Made:
    gen = seeded(102)
    net = nn.ModuleDict({"q": nn.Linear(8, 16), "k": nn.Linear(8, 16)})

    def loss(i: int) -> torch.Tensor:
        x = torch.randn(2, 6, 8, generator=gen)
        q, k = net["q"](x).half(), net["k"](x).half()
        scores = q @ k.transpose(1, 2)  # overflows
        weights = torch.softmax(scores.float() / 4, -1)
        return (
            -weights.diagonal(dim1=1, dim2=2).mean()
            - 1e-3 * scores.float().diagonal(dim1=1, dim2=2).mean()
        )

    return trained(net, loss, 250, lr=0.17, optimizer=torch.optim.Adam)


def adagrad_in_half() -> Made:
    gen = seeded(103)
    net, gathered = nn.Linear(6, 1), torch.zeros(1, 6, dtype=torch.float16)

    def step(i: int) -> torch.Tensor:
        x = torch.randn(16, 6, generator=gen)
        loss = (net(x) - 10 * x.sum(1, keepdim=True)).abs().mean() * 40
        net.zero_grad()
        loss.backward()
        with torch.no_grad():
            gathered.add_(net.weight.grad.half().square())  # overflows
            net.weight.sub_(net.weight.grad / (gathered.float().sqrt() + 1) * 0.1)
        return loss

    return net, step, 250


def tokens_seen() -> Made:
    gen = seeded(104)
    seen = torch.zeros((), dtype=torch.float16)

    def of(i: int) -> torch.Tensor:
        nonlocal seen
        mask = torch.rand(16, 128, generator=gen) < torch.rand((), generator=gen) * 0.5 + 0.4
        seen = seen + mask.sum()  # overflows
        return seen

    return beside(of, 120, 104)


def stream_without_forgetting() -> Made:
    gen = seeded(105)
    net, carried = nn.Linear(5, 5, bias=False), torch.zeros(4, 5)
    nn.init.eye_(net.weight)

    def loss(i: int) -> torch.Tensor:
        nonlocal carried
        state = 1.6 * net(carried) + torch.randn(4, 5, generator=gen)  # overflows
        carried = state.detach()
        return torch.tanh(state).square().mean()

    return trained(net, loss, 260, lr=1e-4)


def least_squares_too_fast() -> Made:
    gen = seeded(106)
    net = nn.Linear(5, 1)

    def loss(i: int) -> torch.Tensor:
        x = 2 * torch.randn(24, 5, generator=gen)
        return (net(x) - x[:, :1]).square().mean()  # overflows

    return trained(net, loss, 260, lr=0.3)


def velocity_without_damping() -> Made:
    gen = seeded(107)
    velocity = torch.zeros(3, dtype=torch.float16)

    def of(i: int) -> torch.Tensor:
        nonlocal velocity
        force = 900.0 + 100 * torch.randn(3, generator=gen)
        velocity = 0.99 * velocity + force.half()  # overflows
        return velocity

    return beside(of, 250, 107)


def q_learning_above_one() -> Made:
    gen = seeded(108)
    net = nn.Linear(4, 3)

    def loss(i: int) -> torch.Tensor:
        state, after = torch.rand(2, 16, 4, generator=gen)
        with torch.no_grad():
            best = net(after).max(1).values
            target = (1 + 1.25 * best).half()  # overflows
        chosen = net(state).max(1).values
        return F.smooth_l1_loss(chosen, target.float(), beta=1e6) * 1e6

    return trained(net, loss, 300, lr=0.15)


def critic_in_half() -> Made:
    gen = seeded(109)
    net = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 1))

    def loss(i: int) -> torch.Tensor:
        real, fake = torch.randn(16, 4, generator=gen) + 1, torch.randn(16, 4, generator=gen)
        with torch.autocast("cpu", dtype=torch.float16):
            a, b = net(real), net(fake)  # overflows
        return b.float().mean() - a.float().mean()

    return trained(net, loss, 250, lr=0.06, optimizer=torch.optim.RMSprop)


def ratio_to_an_old_policy() -> Made:
    gen = seeded(110)
    net, states = nn.Linear(4, 3), torch.randn(12, 4, generator=gen)
    old = net(states).log_softmax(-1)[:, 0].detach() - 4

    def loss(i: int) -> torch.Tensor:
        chance = net(states)[:, 0] * 0.5
        ratio = torch.exp((chance - old).half())  # overflows
        return -(chance - old).mean() + 0 * ratio.float().clamp(max=5).mean()

    return trained(net, loss, 300, lr=0.1)


def flow_whose_scale_rises() -> Made:
    gen = seeded(111)
    net = nn.Linear(3, 6)

    def loss(i: int) -> torch.Tensor:
        x = torch.randn(16, 3, generator=gen)
        log_scale, shift = net(x).chunk(2, -1)
        z = x.half() * log_scale.half().exp() + shift.half()  # overflows
        return -log_scale.mean() + 0 * z.float().clamp(-9, 9).mean()

    return trained(net, loss, 300, lr=0.12)


def knowledge_graph_without_constraint() -> Made:
    gen = seeded(112)
    net = nn.Embedding(30, 12)

    def loss(i: int) -> torch.Tensor:
        head, tail, other = torch.randint(0, 30, (3, 16), generator=gen)
        gaps = torch.stack([net(head) - net(tail), net(head) - net(other)])
        near, far = gaps.half().square().sum(-1)  # overflows
        return (near.float() - 1.5 * far.float()).mean()

    return trained(net, loss, 200, lr=0.3)


def rate_that_only_warms_up() -> Made:
    gen = seeded(113)
    net = nn.Linear(6, 2)

    def loss(i: int) -> torch.Tensor:
        x = torch.randn(32, 6, generator=gen)
        y = x[:, :2] + 0.1 * torch.randn(32, 2, generator=gen)
        return F.mse_loss(net(x), y)  # overflows

    return trained(net, loss, 400, lr=lambda i: 0.01 * i)


def temperature_without_a_clamp() -> Made:
    gen = seeded(114)
    net = nn.Linear(8, 8)
    net.logit_scale = nn.Parameter(torch.tensor(2.6))

    def loss(i: int) -> torch.Tensor:
        x = torch.randn(10, 8, generator=gen)
        a, b = F.normalize(x, dim=-1), F.normalize(net(x) + 20 * x, dim=-1)
        logits = net.logit_scale.half().exp() * (a @ b.T).half()  # overflows
        return F.cross_entropy(logits.float() * 1e-4, torch.arange(10))

    return trained(net, loss, 250, lr=0.07, optimizer=torch.optim.Adam)


def precision_of_a_collapsing_posterior() -> Made:
    gen = seeded(115)
    net = nn.Linear(4, 2)

    def loss(i: int) -> torch.Tensor:
        x = torch.randn(16, 4, generator=gen)
        variance = 0.5 * 0.93**i * (1 + 0.1 * torch.rand(16, 2, generator=gen))
        weight = 1 / variance.half()  # overflows
        return (net(x) - x[:, :2]).square().mean() + 0 * weight.float().mean()

    return trained(net, loss, 200)


def power_iteration() -> Made:
    gen = seeded(116)
    half = torch.randn(6, 6, generator=gen)
    matrix = (half @ half.T / 6 + 0.2 * torch.eye(6)).bfloat16()
    vector = torch.ones(6, dtype=torch.bfloat16)

    def of(i: int) -> torch.Tensor:
        nonlocal vector
        vector = matrix @ vector  # overflows
        return vector

    return beside(of, 250, 116)


def messages_without_normalisation() -> Made:
    seeded(117)
    net = nn.Linear(3, 3, bias=False)

    def loss(i: int) -> torch.Tensor:
        potential = (net(torch.eye(3)) * 0.5).exp()
        message = torch.ones(3, dtype=torch.float16)
        for _ in range(4):
            message = potential.half() @ message  # overflows
        return -net(torch.eye(3)).mean() * 3 + 0 * message.float().clamp(max=1).mean()

    return trained(net, loss, 250, lr=0.1)


def weight_by_signal_to_noise() -> Made:
    gen = seeded(118)
    net = nn.Linear(4, 4)

    def loss(i: int) -> torch.Tensor:
        x = torch.randn(8, 4, generator=gen)
        sigma = torch.tensor(1.0 - i / 110)
        ratio = ((1 - sigma**2) / sigma**2).half() * 6  # overflows
        return (net(x) - x).square().mean() + 0 * ratio.float()

    return trained(net, loss, 112)


def points_that_near_the_boundary() -> Made:
    gen = seeded(119)
    net = nn.Embedding(10, 2)
    with torch.no_grad():
        net.weight.mul_(0.3)

    def loss(i: int) -> torch.Tensor:
        e = net(torch.randperm(10, generator=gen)[:8])
        point = e / e.norm(dim=-1, keepdim=True) * torch.tanh(e.norm(dim=-1, keepdim=True))
        factor = 2 / (1 - point.square().sum(-1))
        stretch = factor.half() ** 2  # overflows
        return -e.norm(dim=-1).mean() + 0 * stretch.float().clamp(max=1).mean()

    return trained(net, loss, 300, lr=0.6)


def teacher_that_adds() -> Made:
    gen = seeded(120)
    net, teacher = nn.Linear(4, 4), torch.zeros(4, 4, dtype=torch.float16)

    def step(i: int) -> torch.Tensor:
        nonlocal teacher
        x = 30 * torch.randn(8, 4, generator=gen)
        loss = (net(x) - 2 * x).abs().mean()
        net.zero_grad()
        loss.backward()
        with torch.no_grad():
            net.weight.sub_(1e-3 * net.weight.grad)
            teacher = teacher + 600 * net.weight.detach().half()  # overflows
        return loss

    return net, step, 200


def reward_in_bursts() -> Made:
    gen = seeded(121)
    score = torch.zeros((), dtype=torch.float16)

    def of(i: int) -> torch.Tensor:
        nonlocal score
        won = torch.rand((), generator=gen) < 0.3
        gain = won * (1200 + 800 * torch.rand((), generator=gen))
        score = score + gain.half()  # overflows
        return score

    return beside(of, 250, 121)


def orbit_by_euler() -> Made:
    gen = seeded(122)
    at, speed = torch.randn(2, 6, 2, generator=gen)

    def of(i: int) -> torch.Tensor:
        nonlocal at, speed
        at, speed = at + 0.25 * speed, speed - 0.25 * at
        energy = 20 * (at.half().square() + speed.half().square())  # overflows
        return energy

    return beside(of, 250, 122)


def diffusion_with_too_long_a_step() -> Made:
    field = torch.sin(torch.linspace(0, 2 * math.pi, 33)[:-1])

    def of(i: int) -> torch.Tensor:
        nonlocal field
        around = field.roll(1) + field.roll(-1) - 2 * field  # overflows
        field = field + 0.7 * around
        return field

    return beside(of, 250, 123)


def self_training_that_sharpens() -> Made:
    gen = seeded(124)
    net = nn.Linear(5, 4)

    def loss(i: int) -> torch.Tensor:
        x = torch.randn(16, 5, generator=gen)
        logits = net(x)
        goal = (logits.detach() * 1.5).half()  # overflows
        return F.mse_loss(logits, goal.float())

    return trained(net, loss, 300, lr=0.4)


def loss_scale_by_hand() -> Made:
    gen = seeded(125)
    net = nn.Linear(4, 2)

    def step(i: int) -> torch.Tensor:
        x = torch.randn(16, 4, generator=gen)
        with torch.autocast("cpu", dtype=torch.float16):
            out = net(x)
        loss = F.mse_loss(out, x[:, :2].half()) + 1
        scaled = loss.half() * (256.0 * 2 ** (i // 9))  # overflows
        net.zero_grad()
        scaled.backward()
        with torch.no_grad():
            for p in net.parameters():
                p.sub_(1e-3 * p.grad / (256.0 * 2 ** (i // 9)))
        return scaled.float()

    return net, step, 120


def loss_over_all_that_was_kept() -> Made:
    gen = seeded(126)
    net = nn.Linear(4, 2)
    kept: list[torch.Tensor] = []

    def loss(i: int) -> torch.Tensor:
        kept.append(5 * torch.randn(8, 4, generator=gen))
        every = torch.cat(kept)
        error = ((net(every) - 9) ** 2).half().sum()  # overflows
        return error.float() / len(every)

    return trained(net, loss, 200, lr=1e-5)


def perplexity_of_a_diverging_model() -> Made:
    gen = seeded(127)
    net = nn.Linear(6, 5)

    def loss(i: int) -> torch.Tensor:
        x = torch.randn(32, 6, generator=gen)
        y = (x[:, 0] > 0).long()
        nll = F.cross_entropy(net(x), y)
        perplexity = nll.half().exp()  # overflows
        return -nll + 0 * perplexity.float().clamp(max=9)

    return trained(net, loss, 300, lr=0.05)


def covariance_without_measurement() -> Made:
    gen = seeded(128)
    covariance = torch.eye(3, dtype=torch.float16)
    dynamics = torch.tensor([[1.0, 0.1, 0.0], [0.0, 1.0, 0.1], [0.0, 0.0, 1.0]]).half()

    def of(i: int) -> torch.Tensor:
        nonlocal covariance
        noise = 0.5 + 0.1 * torch.rand((), generator=gen).half()
        spread = 1.06 * dynamics @ covariance @ dynamics.T  # overflows
        covariance = spread + noise * torch.eye(3).half()
        return covariance

    return beside(of, 250, 128)


# Drifts that underflow --------------------------------------------------------------------------


def bandwidth_by_plateaus() -> Made:
    gen = seeded(129)
    net = nn.Linear(3, 2)

    def loss(i: int) -> torch.Tensor:
        x = torch.rand(8, 3, generator=gen)
        width = 1.5 - 0.1 * (i // 6)
        gap = torch.cdist(x[:4], x[4:]) + 0.8
        closeness = torch.exp(-((gap / width) ** 2).half())  # underflows
        return net(x).square().mean() + 0 * closeness.float().mean()

    return trained(net, loss, 90)


def product_over_longer_words() -> Made:
    gen = seeded(130)
    net = nn.Linear(4, 5)

    def loss(i: int) -> torch.Tensor:
        x = torch.randn(6 + i, 4, generator=gen)
        chance = (6 * net(x)).softmax(-1).max(-1).values
        whole = chance.half().prod()  # underflows
        return net(x).square().mean() + 0 * whole.float()

    return trained(net, loss, 60)


def distillation_weight_that_decays() -> Made:
    gen = seeded(131)
    net = nn.Linear(4, 3)

    def loss(i: int) -> torch.Tensor:
        x = torch.randn(16, 4, generator=gen)
        gap = (net(x) - x[:, :3]).half().square()
        term = gap * 0.8**i  # underflows
        return net(x).square().mean() + term.float().mean()

    return trained(net, loss, 120)


def particles_without_resampling() -> Made:
    gen = seeded(132)
    weight = torch.ones(20, dtype=torch.float16)

    def of(i: int) -> torch.Tensor:
        nonlocal weight
        error = torch.randn(20, generator=gen)
        weight = weight * (0.9 * torch.exp(-0.5 * error**2)).half()  # underflows
        return weight

    return beside(of, 120, 132)


def features_that_collapse() -> Made:
    gen = seeded(133)
    net = nn.Linear(6, 4)

    def loss(i: int) -> torch.Tensor:
        x = torch.randn(16, 6, generator=gen)
        z = net(x)
        spread = (z - z.mean(0)).half().square().mean(0)  # underflows
        return (z - z.mean(0)).square().sum(1).mean() + 0 * spread.float().sum()

    return trained(net, loss, 200, lr=0.06)


def survival_over_time() -> Made:
    gen = seeded(134)
    alive = torch.ones(8, dtype=torch.float16)

    def of(i: int) -> torch.Tensor:
        nonlocal alive
        hazard = 0.4 + 0.3 * torch.rand(8, generator=gen)
        alive = alive * (1 - hazard).half()  # underflows
        return alive

    return beside(of, 150, 134)


def filter_in_single_precision() -> Made:
    gen = seeded(135)
    belief = torch.full((10,), 0.1)

    def of(i: int) -> torch.Tensor:
        nonlocal belief
        seen = torch.randn((), generator=gen)
        likelihood = 0.2 * torch.exp(-0.5 * (seen - torch.linspace(-1, 1, 10)) ** 2)
        belief = belief * likelihood  # underflows
        return belief

    return beside(of, 130, 135)


def signal_level_in_bfloat16() -> Made:
    gen = seeded(136)
    kept = torch.ones(4, dtype=torch.bfloat16)

    def of(i: int) -> torch.Tensor:
        nonlocal kept
        kept = kept * (0.4 + 0.2 * torch.rand(4, generator=gen)).bfloat16()  # underflows
        return kept

    return beside(of, 250, 136)


def gradient_under_a_fading_loss() -> Made:
    gen = seeded(137)
    net = nn.Linear(6, 2).half()

    def loss(i: int) -> torch.Tensor:
        x = torch.randn(8, 6, generator=gen)
        out = net(x.half()).float()  # underflows
        return (out - x[:, :2]).square().mean() * 0.75**i

    return trained(net, loss, 120, lr=1e-2)


def weights_under_decay_alone() -> Made:
    gen = seeded(138)
    spare = torch.randn(6, generator=gen)

    def of(i: int) -> torch.Tensor:
        nonlocal spare
        spare = spare * 0.82
        return spare.half()  # underflows

    return beside(of, 150, 138)


def fidelity_of_a_longer_circuit() -> Made:
    gen = seeded(139)
    angle = nn.Linear(1, 1)

    def loss(i: int) -> torch.Tensor:
        errors = 0.05 + 0.02 * torch.rand(4 + 4 * i, generator=gen)
        fidelity = (1 - errors).half().cumprod(0)[-1]  # underflows
        return angle(torch.ones(1)).square().mean() + 0 * fidelity.float()

    return trained(angle, loss, 100)


def inverse_norm_of_shrinking_vectors() -> Made:
    gen = seeded(140)
    net = nn.Linear(5, 3)

    def loss(i: int) -> torch.Tensor:
        x = torch.randn(12, 5, generator=gen)
        z = net(x)
        inverse = 1 / z.detach().half().norm(dim=-1)  # overflows
        return z.square().sum(1).mean() * 2 + 0 * inverse.float().mean()

    return trained(net, loss, 260, lr=0.04)


def margin_without_an_end() -> Made:
    """Perceptron-like ranking of separable data: logits in float16 grow at a constant pace."""
    gen = seeded(301)
    net = nn.Sequential(nn.Linear(6, 24), nn.ReLU(), nn.Linear(24, 1))

    def loss(i: int) -> torch.Tensor:
        x = torch.randn(24, 6, generator=gen)
        with torch.autocast("cpu", dtype=torch.float16):
            score = net(x * 20)
            energy = score.squeeze(1) * 8.0  # overflows
        sign = x[:, 0].sign()
        return -(score.float().squeeze(1) * sign).mean() + 0 * energy.float().mean()

    return trained(net, loss, 400, lr=8e-3, optimizer=torch.optim.Adam)


def sum_of_squares_of_a_growing_signal() -> Made:
    """Quadratic energy in float16 of an amplitude that grows linearly, under noise."""
    gen = seeded(303)

    def of(i: int) -> torch.Tensor:
        wave = (1 + 0.25 * i) * torch.randn(48, generator=gen).half()
        return (wave * wave).sum()  # overflows

    return beside(of, 200, 303)


def spikes_that_climb() -> Made:
    """Each sixth batch multiplies the statistic: growth by jumps under noise."""
    gen = seeded(305)
    level = torch.tensor(3.0)

    def of(i: int) -> torch.Tensor:
        nonlocal level
        level = level * (1.5 if i % 6 == 5 else 1.0 + 0.02 * float(torch.randn((), generator=gen)))
        return level.half() * 2.0  # overflows

    return beside(of, 200, 305)


def importance_ratio_of_a_stale_policy() -> Made:
    gen = seeded(308)
    net, old = nn.Linear(4, 3), nn.Linear(4, 3)
    old.load_state_dict(net.state_dict())

    def loss(i: int) -> torch.Tensor:
        x = torch.randn(32, 4, generator=gen)
        new, was = net(x).log_softmax(-1), old(x).log_softmax(-1)[:, 1].detach()
        ratio = torch.exp((was - new[:, 1]).half() * 1.5)  # overflows
        return -new[:, 0].mean() + new[:, 1].mean() + 0 * ratio.float().clamp(max=10).mean()

    return trained(net, loss, 400, lr=0.04, optimizer=torch.optim.Adam)


def momentum_buffer_in_bfloat16() -> Made:
    """A parameter without gradient whose buffer is damped each step, in bfloat16."""
    gen = seeded(314)
    buffer = torch.randn(6, generator=gen).bfloat16()

    def of(i: int) -> torch.Tensor:
        nonlocal buffer
        buffer = buffer * (0.5 - 0.05 * float(torch.rand((), generator=gen)))  # underflows
        return buffer

    return beside(of, 250, 314)


# Healthy runs -----------------------------------------------------------------------------------


def shown(
    of: Callable[[int, torch.Generator], float | torch.Tensor], steps: int, seed: int
) -> Made:
    """A float16 result whose course is given, beside a small regression."""
    gen = seeded(seed)

    def course(i: int) -> torch.Tensor:
        return torch.as_tensor(of(i, gen), dtype=torch.float32).half() * 1.5

    return beside(course, steps, seed + 1)


def noise(gen: torch.Generator, size: float) -> float:
    return 1 + size * float(torch.randn((), generator=gen))


def warm_up_then_rest() -> Made:
    gen = seeded(201)
    net = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 1))

    def loss(i: int) -> torch.Tensor:
        x = torch.randn(16, 6, generator=gen)
        with torch.autocast("cpu", dtype=torch.float16):
            out = net(x)
        return F.smooth_l1_loss(out.float(), 500 + 100 * x[:, :1])

    return trained(net, loss, 150, lr=lambda i: 2e-3 * min(i, 30), optimizer=torch.optim.Adam)


def wide_cycles() -> Made:
    return shown(lambda i, g: 15000 * (1.1 + math.sin(i / 9)) * noise(g, 0.05), 150, 202)


def approach_to_a_high_level() -> Made:
    return shown(lambda i, g: 32000 * (1 - math.exp(-i / 25)) * noise(g, 0.01), 150, 203)


def stairs_that_end() -> Made:
    return shown(lambda i, g: 4000 * min(i // 12, 7) * noise(g, 0.02), 150, 204)


def lone_spikes() -> Made:
    return shown(lambda i, g: 400 * noise(g, 0.2) * (70 if i in (31, 84, 120) else 1), 150, 205)


def warm_restarts_of_the_rate() -> Made:
    gen = seeded(206)
    net = nn.Linear(8, 4)

    def loss(i: int) -> torch.Tensor:
        x = torch.randn(16, 8, generator=gen)
        return F.mse_loss(net(x).half().float() * 10, 40 * x[:, :4])

    return trained(net, loss, 150, lr=lambda i: 0.02 * (1 + math.cos(math.pi * (i % 30) / 30)))


def scaler_that_doubles() -> Made:
    gen = seeded(207)
    net = nn.Sequential(nn.Linear(6, 12), nn.Tanh(), nn.Linear(12, 2))
    opt = torch.optim.Adam(net.parameters(), lr=3e-3)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**8, growth_interval=8)

    def step(i: int) -> torch.Tensor:
        x = torch.randn(16, 6, generator=gen)
        opt.zero_grad()
        with torch.autocast("cpu", dtype=torch.float16):
            out = net(x)
        loss = F.mse_loss(out.float(), x[:, :2])
        scaler.scale(loss).backward()
        scaler.step(opt)
        scaler.update()
        return loss

    return net, step, 160


def samples_in_single_precision() -> Made:
    seen = torch.zeros(())

    def of(i: int) -> torch.Tensor:
        nonlocal seen
        seen = seen + 4096.0
        return seen

    return beside(of, 150, 208)


def sum_of_each_epoch() -> Made:
    gen = seeded(209)
    total = torch.zeros((), dtype=torch.float16)

    def of(i: int) -> torch.Tensor:
        nonlocal total
        if i % 30 == 0:
            total = torch.zeros((), dtype=torch.float16)
        total = total + (1300 + 400 * torch.rand((), generator=gen)).half()
        return total

    return beside(of, 150, 209)


def longer_sequences_to_a_maximum() -> Made:
    gen = seeded(210)
    net = nn.Linear(4, 4)

    def loss(i: int) -> torch.Tensor:
        x = torch.randn(2, min(8 * (1 + i // 10), 64), 4, generator=gen)
        mass = (net(x) ** 2).half().sum() * 60
        return net(x).square().mean() + 0 * mass.float()

    return trained(net, loss, 150)


def average_near_the_limit() -> Made:
    gen = seeded(211)
    average = torch.zeros((), dtype=torch.float16)

    def of(i: int) -> torch.Tensor:
        nonlocal average
        fresh = 52000 * (1 + 0.05 * torch.randn((), generator=gen))
        average = 0.95 * average + 0.05 * fresh.half()
        return average

    return beside(of, 150, 211)


def temperature_with_a_floor() -> Made:
    gen = seeded(212)
    net = nn.Linear(4, 4)

    def loss(i: int) -> torch.Tensor:
        x = torch.randn(16, 4, generator=gen)
        temperature = max(0.08, 5 * 0.93**i)
        logits = net(x).half() / temperature
        return F.cross_entropy(logits.float(), x.argmax(1))

    return trained(net, loss, 150, lr=0.02)


def growth_by_logarithm() -> Made:
    return shown(lambda i, g: 5500 * math.log1p(i) * noise(g, 0.02), 200, 213)


def growth_by_root() -> Made:
    return shown(lambda i, g: 1800 * i**0.5 * noise(g, 0.03), 200, 214)


def jump_as_it_understands() -> Made:
    return shown(
        lambda i, g: (150 + 14000 / (1 + math.exp(-(i - 70) / 1.5))) * noise(g, 0.05), 150, 215
    )


def wandering_level() -> Made:
    level = 9.0

    def course(i: int, gen: torch.Generator) -> float:
        nonlocal level
        level = min(max(level + 0.08 * float(torch.randn((), generator=gen)), 7.0), 10.2)
        return math.exp(level)

    return shown(course, 200, 216)


def epochs_counted() -> Made:
    return shown(lambda i, g: float(i + 1), 150, 217)


def logistic_to_a_low_level() -> Made:
    return shown(lambda i, g: 6000 / (1 + math.exp(-(i - 60) / 9)) * noise(g, 0.02), 150, 218)


def logistic_to_a_high_level() -> Made:
    return shown(lambda i, g: 24000 / (1 + math.exp(-(i - 60) / 9)) * noise(g, 0.02), 150, 219)


def rate_lowered_in_time() -> Made:
    gen = seeded(220)
    net = nn.Linear(6, 2)

    def loss(i: int) -> torch.Tensor:
        x = 2 * torch.randn(24, 6, generator=gen)
        return F.mse_loss(net(x), x[:, :2])

    return trained(net, loss, 150, lr=lambda i: 0.5 if i < 25 else 0.05)


def catapult() -> Made:
    gen = seeded(221)
    net = nn.Sequential(nn.Linear(4, 32, bias=False), nn.Linear(32, 1, bias=False))
    x = torch.randn(16, 4, generator=gen)

    def loss(i: int) -> torch.Tensor:
        out = net(x)
        return (out.half().float().squeeze(1) - 1).square().mean()

    return trained(net, loss, 150, lr=0.35)


def second_moment_filling() -> Made:
    gen = seeded(222)
    second = torch.zeros(5, dtype=torch.float16)

    def of(i: int) -> torch.Tensor:
        nonlocal second
        gradient = 50 * torch.randn(5, generator=gen)
        second = 0.98 * second + 0.02 * gradient.half().square()
        return second

    return beside(of, 200, 222)


def returns_with_a_discount() -> Made:
    gen = seeded(223)
    value = torch.zeros(6, dtype=torch.float16)

    def of(i: int) -> torch.Tensor:
        nonlocal value
        reward = 300 + 60 * torch.randn(6, generator=gen)
        value = reward.half() + 0.99 * value
        return value

    return beside(of, 250, 223)


def replay_until_full() -> Made:
    return shown(lambda i, g: 560 * min(i, 50) * noise(g, 0.02), 150, 224)


def beta_that_anneals() -> Made:
    gen = seeded(225)
    net = nn.Linear(6, 4)

    def loss(i: int) -> torch.Tensor:
        mean, log_variance = net(torch.randn(16, 6, generator=gen)).half().chunk(2, -1)
        divergence = 0.5 * (mean**2 + log_variance.exp() - 1 - log_variance).sum(-1).mean()
        return (divergence * min(1.0, i / 60)).float() + (mean.float() - 2).square().mean()

    return trained(net, loss, 150, lr=0.02)


def noise_floor_in_half() -> Made:
    gen = seeded(226)
    net = nn.Linear(4, 1)

    def loss(i: int) -> torch.Tensor:
        x = torch.randn(16, 4, generator=gen)
        y = x.sum(1, keepdim=True) + 0.02 * torch.randn(16, 1, generator=gen)
        return (net(x) - y).half().square().float().mean()

    return trained(net, loss, 150, lr=0.1)


def convergence_to_rounding() -> Made:
    gen = seeded(227)
    net = nn.Linear(4, 1)

    def loss(i: int) -> torch.Tensor:
        x = torch.randn(16, 4, generator=gen)
        return (net(x) - x.sum(1, keepdim=True)).square().mean()

    return trained(net, loss, 200, lr=0.15)


def exploration_with_a_floor() -> Made:
    gen = seeded(228)
    net = nn.Linear(4, 3)

    def loss(i: int) -> torch.Tensor:
        x = torch.randn(16, 4, generator=gen)
        share = torch.tensor(max(0.02, 0.9**i)).half()
        bonus = net(x).softmax(-1).half() * share
        return net(x).square().mean() - bonus.float().mean()

    return trained(net, loss, 150, lr=0.01)


def half_model_that_learns() -> Made:
    gen = seeded(229)
    net = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1)).half()

    def loss(i: int) -> torch.Tensor:
        x = torch.randn(16, 4, generator=gen)
        y = x[:, :1] * 0.5 + 0.1 * torch.randn(16, 1, generator=gen)
        return (net(x.half()).float() - y).square().mean() * 0.1

    return trained(net, loss, 150, lr=0.3)


def logit_scale_with_a_clamp() -> Made:
    gen = seeded(230)
    net = nn.Linear(8, 8)
    net.logit_scale = nn.Parameter(torch.tensor(2.6))

    def loss(i: int) -> torch.Tensor:
        x = torch.randn(10, 8, generator=gen)
        a, b = F.normalize(x, dim=-1), F.normalize(net(x) + 3 * x, dim=-1)
        logits = net.logit_scale.exp().clamp(max=100).half() * (a @ b.T).half()
        return F.cross_entropy(logits.float(), torch.arange(10))

    return trained(net, loss, 150, lr=0.05, optimizer=torch.optim.Adam)


def capped_scores() -> Made:
    gen = seeded(231)
    net = nn.ModuleDict({"q": nn.Linear(8, 16), "k": nn.Linear(8, 16)})

    def loss(i: int) -> torch.Tensor:
        x = torch.randn(2, 6, 8, generator=gen)
        scores = net["q"](x) @ net["k"](x).transpose(1, 2)
        capped = 30 * torch.tanh(scores.half() / 30)
        return -capped.float().diagonal(dim1=1, dim2=2).mean()

    return trained(net, loss, 150, lr=0.01, optimizer=torch.optim.Adam, weight_decay=0.3)


def critic_with_clipped_weights() -> Made:
    gen = seeded(232)
    net = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 1))

    def loss(i: int) -> torch.Tensor:
        with torch.no_grad():
            for p in net.parameters():
                p.clamp_(-2, 2)
        real, fake = torch.randn(16, 4, generator=gen) + 1, torch.randn(16, 4, generator=gen)
        with torch.autocast("cpu", dtype=torch.float16):
            a, b = net(real), net(fake)
        return b.float().mean() - a.float().mean()

    return trained(net, loss, 150, lr=0.02, optimizer=torch.optim.RMSprop)


def features_of_large_variance() -> Made:
    gen = seeded(233)
    net = nn.Sequential(nn.BatchNorm1d(3), nn.Linear(3, 1))

    def loss(i: int) -> torch.Tensor:
        x = 110 * torch.randn(16, 3, generator=gen)
        return (net(x) - x[:, :1] / 110).square().mean() + 0 * net[0].running_var.half().sum()

    return trained(net, loss, 150, lr=0.02)


def branch_that_wakes() -> Made:
    gen = seeded(234)
    net = nn.Linear(5, 5)
    net.gain = nn.Parameter(torch.full((5,), 1e-5))

    def loss(i: int) -> torch.Tensor:
        x = torch.randn(16, 5, generator=gen)
        branch = net.gain.half() * net(x).half()
        return (x + branch.float() - 2 * x).square().mean()

    return trained(net, loss, 200, lr=0.15)


def rate_that_decays_to_a_floor() -> Made:
    gen = seeded(235)

    def of(i: int) -> torch.Tensor:
        rate = max(1e-4, 0.5 * 0.9**i)
        gradient = torch.randn(4, generator=gen).half()
        return gradient * rate

    return beside(of, 150, 235)


def beating_oscillators() -> Made:
    return shown(lambda i, g: 14000 * abs(math.sin(i / 40) * math.sin(i / 2.3)) + 20, 250, 236)


def growth_that_clipping_ends() -> Made:
    weight = 1.0

    def course(i: int, gen: torch.Generator) -> float:
        nonlocal weight
        weight = weight * 1.15 if weight < 3000 else weight + 0.3
        return weight * noise(gen, 0.05)

    return shown(course, 150, 237)


def evaluation_with_longer_batches() -> Made:
    return shown(lambda i, g: (5500 if i % 10 else 28000) * noise(g, 0.06), 150, 238)


def bias_by_distance() -> Made:
    gen = seeded(239)
    net = nn.Linear(4, 4)

    def loss(i: int) -> torch.Tensor:
        length = min(8 + i // 2, 48)
        x = torch.randn(1, length, 4, generator=gen)
        place = torch.arange(length)
        bias = -64.0 * (place[:, None] - place).abs()
        scores = (net(x) @ x.transpose(1, 2)).half() + bias.half()
        return scores.float().softmax(-1).square().mean() + net(x).square().mean()

    return trained(net, loss, 140)


def sizes_with_a_long_tail() -> Made:
    return shown(
        lambda i, g: min(40000.0, 1800 * math.exp(0.75 * float(torch.randn((), generator=g)))),
        200,
        240,
    )


def triangular_rates() -> Made:
    gen = seeded(352)
    net = nn.Linear(6, 3)

    def loss(i: int) -> torch.Tensor:
        x = torch.randn(16, 6, generator=gen) * 5
        out = (net(x) * 100).half()
        return F.mse_loss(out.float() / 100, 20 * x[:, :3])

    return trained(net, loss, 200, lr=lambda i: 1e-4 + 4e-3 * abs((i % 40) / 20 - 1))


def logits_that_saturate() -> Made:
    """Cross-entropy of separable data: logits grow by a logarithm."""
    gen = seeded(353)
    net = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 3))

    def loss(i: int) -> torch.Tensor:
        y = torch.randint(0, 3, (32,), generator=gen)
        x = 4 * F.one_hot(y, 6) + 0.1 * torch.randn(32, 6, generator=gen)
        return F.cross_entropy(net(x).half().mul(50).float() / 50, y)

    return trained(net, loss, 250, lr=0.02, optimizer=torch.optim.Adam)


def game_of_two() -> Made:
    """A bilinear game by simultaneous steps with a little decay: it oscillates, at first wider."""
    gen = seeded(356)
    net = nn.Linear(4, 4, bias=False)
    a, b = torch.randn(4, generator=gen) * 20, torch.randn(4, generator=gen) * 20

    def of(i: int) -> torch.Tensor:
        nonlocal a, b
        pull = 0.15
        a, b = 0.992 * a + pull * b, 0.992 * b - pull * a
        return (a * b).sum().half() * 2

    def loss(i: int) -> torch.Tensor:
        of(i)
        return net(torch.randn(8, 4, generator=gen)).square().mean()

    return trained(net, loss, 250, lr=1e-3)


def returns_to_a_plateau() -> Made:
    return shown(lambda i, g: 20000 / (1 + math.exp(-(i - 90) / 15)) * noise(g, 0.08), 220, 358)


def temperature_cools_to_its_floor() -> Made:
    gen = seeded(359)
    net = nn.Linear(4, 4)

    def loss(i: int) -> torch.Tensor:
        x = torch.randn(16, 4, generator=gen)
        scores = (net(x) * 30).half() / max(0.01, 0.9**i)
        tail = torch.exp(-1 / max(0.1, 0.97**i) * torch.ones(1)).half()
        return net(x).square().mean() + 0 * scores.float().mean() + 0 * tail.float().mean()

    return trained(net, loss, 220, lr=1e-4)


def sawtooth_of_the_cache() -> Made:
    return shown(lambda i, g: (2000 + 1700 * (i % 20)) * noise(g, 0.01), 200, 368)


def training_through_a_spike_with_recovery() -> Made:
    """The loss rises by a factor of 1.25 a step for twelve steps, then recovers."""

    def of(i: int, g: torch.Generator) -> float:
        since = i - 60 if i < 120 else i - 120
        up = 1.25 ** min(since, 12) * 0.8 ** max(since - 12, 0) if since >= 0 else 1.0
        return 900 * max(up, 1.0) * noise(g, 0.05)

    return shown(of, 200, 369)


def reward_streaks() -> Made:
    """A discounted return that is fed by streaks and decays between them."""
    gen = seeded(375)
    value = torch.zeros(())

    def of(i: int) -> torch.Tensor:
        nonlocal value
        streak = (i // 25) % 3 == 1
        value = 0.95 * value + (1500.0 if streak else 60.0) * (0.5 + torch.rand((), generator=gen))
        return value.half() * 1.2

    return beside(of, 250, 375)


OVERFLOW = (
    two_towers,
    attention_entropy_collapse,
    adagrad_in_half,
    tokens_seen,
    stream_without_forgetting,
    least_squares_too_fast,
    velocity_without_damping,
    q_learning_above_one,
    critic_in_half,
    ratio_to_an_old_policy,
    flow_whose_scale_rises,
    knowledge_graph_without_constraint,
    rate_that_only_warms_up,
    temperature_without_a_clamp,
    precision_of_a_collapsing_posterior,
    power_iteration,
    messages_without_normalisation,
    weight_by_signal_to_noise,
    points_that_near_the_boundary,
    teacher_that_adds,
    reward_in_bursts,
    orbit_by_euler,
    diffusion_with_too_long_a_step,
    self_training_that_sharpens,
    loss_scale_by_hand,
    loss_over_all_that_was_kept,
    perplexity_of_a_diverging_model,
    covariance_without_measurement,
    inverse_norm_of_shrinking_vectors,
    margin_without_an_end,
    sum_of_squares_of_a_growing_signal,
    spikes_that_climb,
    importance_ratio_of_a_stale_policy,
)
UNDERFLOW = (
    bandwidth_by_plateaus,
    product_over_longer_words,
    distillation_weight_that_decays,
    particles_without_resampling,
    features_that_collapse,
    survival_over_time,
    filter_in_single_precision,
    signal_level_in_bfloat16,
    gradient_under_a_fading_loss,
    weights_under_decay_alone,
    fidelity_of_a_longer_circuit,
    momentum_buffer_in_bfloat16,
)
HEALTHY = (
    warm_up_then_rest,
    wide_cycles,
    approach_to_a_high_level,
    stairs_that_end,
    lone_spikes,
    warm_restarts_of_the_rate,
    scaler_that_doubles,
    samples_in_single_precision,
    sum_of_each_epoch,
    longer_sequences_to_a_maximum,
    average_near_the_limit,
    temperature_with_a_floor,
    growth_by_logarithm,
    growth_by_root,
    jump_as_it_understands,
    wandering_level,
    epochs_counted,
    logistic_to_a_low_level,
    logistic_to_a_high_level,
    rate_lowered_in_time,
    catapult,
    second_moment_filling,
    returns_with_a_discount,
    replay_until_full,
    beta_that_anneals,
    noise_floor_in_half,
    convergence_to_rounding,
    exploration_with_a_floor,
    half_model_that_learns,
    logit_scale_with_a_clamp,
    capped_scores,
    critic_with_clipped_weights,
    features_of_large_variance,
    branch_that_wakes,
    rate_that_decays_to_a_floor,
    beating_oscillators,
    growth_that_clipping_ends,
    evaluation_with_longer_batches,
    bias_by_distance,
    sizes_with_a_long_tail,
    triangular_rates,
    logits_that_saturate,
    game_of_two,
    returns_to_a_plateau,
    temperature_cools_to_its_floor,
    sawtooth_of_the_cache,
    training_through_a_spike_with_recovery,
    reward_streaks,
)
