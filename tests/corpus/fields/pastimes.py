"""Healthy programs of the same crafts: guarded, masked, annealed, or bad where nothing reads it."""

import math

import torch
from programs import healthy, train
from torch import nn
from torch.nn import functional as F


def seeded(seed, *shape):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def weights(*shape):
    return nn.Parameter(torch.ones(*shape))


def quiet(parameter, loss, lr=1e-3):
    return None, train([parameter], loss, lr=lr)


@healthy("a floor under the power")
def decibels_with_a_floor(fixed):
    waves, gain = torch.zeros(3, 8), weights(8)
    return quiet(gain, lambda i: (10 * torch.log10((waves * gain).square().mean(1) + 1e-6)).mean())


@healthy("the pole is replaced before the logarithm")
def mercator_without_the_pole(fixed):
    sine, scale = torch.tensor([0.0, 0.7, 1.0]), weights(1)
    kept = torch.where(sine < 1, sine, 0.0)
    return quiet(scale, lambda i: torch.atanh(kept * 0.9 * scale).where(sine < 1, 0.0).sum())


@healthy("an infinite deadline is only compared")
def deadline_without_end(fixed):
    due, pace = torch.tensor([3.0, math.inf, 5.0]), weights(3)
    return quiet(pace, lambda i: (pace * (due > 4).float()).square().sum())


@healthy("best time so far starts at infinity, kept as a number")
def best_lap_so_far(fixed):
    pace, best = weights(4), [math.inf]

    def loss(i):
        lap = pace.square().sum()
        best[0] = min(best[0], float(lap))
        return lap + 0 * (best[0] if math.isfinite(best[0]) else 0)

    return quiet(pace, loss)


@healthy("missing scores are NaN and never selected")
def matches_not_yet_played(fixed):
    scores, skill = torch.tensor([1.0, math.nan, 3.0]), weights(3)
    seen = ~scores.isnan()
    return quiet(skill, lambda i: (skill[seen] - scores[seen]).square().mean())


@healthy("nanmean skips the gap of the sensor, which carries no gradient")
def rain_gauge_with_gaps(fixed):
    rain, level = torch.tensor([[1.0, math.nan], [2.0, 4.0]]), weights(2)
    return quiet(level, lambda i: (level - rain.nanmean(0)).square().sum())


@healthy("one free player is always left")
def lineup_with_a_substitute(fixed):
    skill, injured = nn.Parameter(seeded(1, 3, 4)), torch.ones(3, 4, dtype=torch.bool)
    injured[:, 0] = False
    return quiet(skill, lambda i: skill.masked_fill(injured, -math.inf).softmax(-1)[:, 0].sum() + skill.square().sum())


@healthy("large exponent that is clamped first")
def clamped_arrhenius(fixed):
    cold, energy = torch.tensor([5.0, 0.01]), weights(1)
    return quiet(energy, lambda i: torch.exp((energy / cold).clamp(max=20)).log().sum())


@healthy("log of a sum by logsumexp of large scores")
def partition_of_large_scores(fixed):
    scores = nn.Parameter(200 * seeded(2, 5))
    return quiet(scores, lambda i: torch.logsumexp(scores, 0) / 100)


@healthy("expm1 underflows to minus one on purpose")
def saturated_response(fixed):
    dose, rate = torch.tensor([1.0, 50.0, 500.0]), weights(1)
    return quiet(rate, lambda i: (-torch.expm1(-dose * rate)).mean())


@healthy("weights of far neighbours vanish")
def kernel_of_far_villages(fixed):
    away, width = torch.tensor([0.0, 1.0, 40.0]), weights(1)
    return quiet(width, lambda i: torch.exp(-(away**2) / (2 * width**2)).sum())


@healthy("double where around the root")
def weir_with_a_double_where(fixed):
    depth = nn.Parameter(torch.tensor([0.5, 0.0, 1.5]))

    def loss(i):
        wet = depth > 0
        return torch.where(wet, torch.where(wet, depth, 1.0).sqrt(), 0.0).sum()

    return quiet(depth, loss)


@healthy("gradient of a hinge is zero for most")
def auction_with_a_reserve(fixed):
    bids = nn.Parameter(torch.tensor([1.0, 5.0, 9.0]))
    return quiet(bids, lambda i: F.relu(bids - 4).mean())


@healthy("a year without claims is skipped")
def claims_of_the_years_that_had_some(fixed):
    trend = weights(3)

    def loss(i):
        groups = [torch.tensor([3.0, 5.0]), torch.empty(0), torch.tensor([4.0])]
        return sum((g.mean() - trend[k]).square() for k, g in enumerate(groups) if len(g))

    return quiet(trend, loss)


@healthy("variance of one reading without the correction")
def spread_of_a_single_reading(fixed):
    gain = weights(1)
    return quiet(gain, lambda i: (torch.tensor([2.0]) * gain).var(correction=0) + gain.square().sum())


@healthy("ratio to a baseline with a stable epsilon")
def relative_growth(fixed):
    base, growth = torch.tensor([0.0, 2.0, 4.0]), weights(3)
    return quiet(growth, lambda i: (growth / (base + 1.0)).square().mean())


@healthy("angle by atan2, never at the origin")
def bearing_of_a_ship(fixed):
    heading = nn.Parameter(torch.tensor([0.0, 1.0]))
    return quiet(heading, lambda i: torch.atan2(heading[0], heading[1]).square() + heading.square().sum())


@healthy("cosine clamped away from its edge")
def hour_angle_with_a_margin(fixed):
    tilt = weights(1)
    return quiet(tilt, lambda i: torch.acos((tilt * torch.tensor([0.3, 1.0])).clamp(-0.99, 0.99)).sum())


@healthy("mean squared levels in half, computed in float32")
def energy_of_a_quiet_track(fixed):
    track, gain = torch.full((8,), 200.0).half(), weights(8)
    return quiet(gain, lambda i: (track.float() * gain).square().mean().log())


@healthy("zero learning rate of a warm-up's first step")
def warm_up_from_nothing(fixed):
    w = weights(4)
    opt = torch.optim.SGD([w], lr=1.0)
    schedule = torch.optim.lr_scheduler.LambdaLR(opt, lambda i: i / 100)

    def step(i):
        opt.zero_grad()
        value = w.square().sum()
        value.backward()
        opt.step()
        schedule.step()
        return value

    step.parameters = {"w": w}
    return None, step


@healthy("infinite borders of a distance table that the minimum passes by")
def way_through_a_maze(fixed):
    cost = nn.Parameter(seeded(3, 4).abs() + 1)

    def loss(i):
        best = torch.tensor([0.0, math.inf, math.inf, math.inf])
        for k in range(3):
            best = torch.cat([best[: k + 1], (best[k] + cost[k])[None], best[k + 2 :]])
        return best[3]

    return quiet(cost, loss)


@healthy("entropy by xlogy, which is zero at zero")
def diversity_with_absent_species(fixed):
    share, bias = torch.tensor([0.5, 0.5, 0.0]), weights(1)
    return quiet(bias, lambda i: -(torch.special.xlogy(share, share).sum() * bias).sum())


@healthy("determinant by logdet of a well-conditioned system")
def volume_of_a_crystal(fixed):
    cell = nn.Parameter(torch.eye(3) * 3 + 0.1 * seeded(4, 3, 3))
    return quiet(cell, lambda i: torch.logdet(cell))


@healthy("nothing is sold on one day, and its share is guarded")
def share_of_sales_by_day(fixed):
    sold, price = torch.tensor([[1.0, 3.0], [0.0, 0.0]]), weights(2)
    return quiet(price, lambda i: (sold * price / (sold * price).sum(1, keepdim=True).clamp_min(1e-6)).square().sum())


@healthy("large finite penalty for a rule that is broken")
def penalty_of_a_foul(fixed):
    play = nn.Parameter(seeded(5, 4))
    return quiet(play, lambda i: (play.sigmoid() + 1e4 * F.relu(play - 9)).mean())
