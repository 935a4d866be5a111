"""Acoustics, cartography, ecology, sport, insurance, colour, traffic, optics and the like: formulas of a craft where they stop to hold."""

import math

import torch
from programs import fault, train
from torch import nn


def seeded(seed, *shape):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


@fault("log-of-zero", "log10", ops=("log",))
def decibels_of_a_silent_window(fixed):
    waves = seeded(0, 4, 16)
    waves[2] = 0.0
    gain = nn.Parameter(torch.ones(16))

    def loss(i):
        power = (waves * gain).square().mean(1)
        level = 10 * torch.log10(power + (1e-8 if fixed else 0.0))  # ORIGIN
        return (level + 20).square().mean()

    return None, train([gain], loss, lr=1e-5)


@fault("exp-overflow", "exp")
def equal_temperament_of_raw_pitch(fixed):
    """The pitch is in cents, and the exponent wants octaves."""
    cents = torch.tensor([0.0, 1200.0, 2400.0, 19000.0])
    tuning = nn.Parameter(torch.tensor(1.0))

    def loss(i):
        octaves = cents / 1200 if fixed else cents
        hertz = torch.exp(octaves * tuning * math.log(2))  # ORIGIN
        return hertz.log1p().mean()

    return None, train([tuning], loss, lr=1e-6)


@fault("log-of-zero", "log", ops=("tan",))
def mercator_of_the_pole(fixed):
    latitude = torch.tensor([0.0, 45.0, -90.0]) * (math.pi / 180)
    if fixed:
        latitude = latitude.clamp(-1.48, 1.48)
    scale = nn.Parameter(torch.ones(()))

    def loss(i):
        half = torch.sin(latitude) * scale
        y = 0.5 * (torch.log(1 + half) - torch.log(1 - half))  # ORIGIN
        return y.square().mean()

    return None, train([scale], loss, lr=1e-4)


@fault("sqrt-of-negative", "sqrt")
def total_reflection_in_a_prism(fixed):
    angle = torch.linspace(0.1, 1.4, 6)
    index = nn.Parameter(torch.tensor(1.5))

    def loss(i):
        sine = index * torch.sin(angle)
        inside = 1 - sine**2
        cosine = torch.sqrt(inside.clamp_min(1e-4) if fixed else inside)  # ORIGIN
        return ((cosine - torch.cos(angle)) / (cosine + torch.cos(angle))).square().mean()

    return None, train([index], loss)


@fault("div-by-zero", "div", ops=("mul", "reciprocal"))
def headway_of_stopped_traffic(fixed):
    speed = torch.tensor([12.0, 0.0, 8.0, 3.0])
    gap = torch.tensor([30.0, 5.0, 20.0, 9.0])
    factor = nn.Parameter(torch.ones(4))

    def loss(i):
        moving = speed.clamp_min(0.5) if fixed else speed
        headway = gap * factor / moving  # ORIGIN
        return (headway - 2).square().mean()

    return None, train([factor], loss, lr=1e-4)


@fault("pow-fraction-at-zero", "pow", "backward", ops=("mul",))
def gamma_of_a_black_pixel(fixed):
    image = torch.tensor([[0.0, 0.2], [0.7, 1.0]])
    lift = nn.Parameter(torch.ones(2))

    def loss(i):
        light = image * lift + (1e-4 if fixed else 0.0)
        return (light ** (1 / 2.2) - 0.5).square().mean()  # ORIGIN

    return None, train([lift], loss, lr=1e-3)


@fault("exp-overflow", "exp")
def arrhenius_in_celsius(fixed):
    """The temperature is in degrees Celsius, a few of them below zero."""
    celsius = torch.tensor([20.0, 5.0, -0.9])
    energy = nn.Parameter(torch.tensor(90.0))

    def loss(i):
        kelvin = celsius + (273.15 if fixed else 0.0)
        rate = torch.exp(-energy / kelvin)  # ORIGIN
        return rate.mean()

    return None, train([energy], loss, lr=1e3)


@fault("log-of-negative", "log")
def growth_of_a_population_that_died_out(fixed):
    """Explicit steps of a logistic map overshoot below zero."""
    rate = nn.Parameter(torch.tensor([1.5, 2.0, 3.6]))

    def loss(i):
        n = torch.full((3,), 1.4)
        for _ in range(3):
            n = n + rate * n * (1 - n)
            n = n.clamp_min(1e-3) if fixed else n
        return torch.log(n).square().mean()  # ORIGIN

    return None, train([rate], loss, lr=1e-5)


@fault("log-of-zero", "log")
def rating_of_an_unbeaten_team(fixed):
    wins = torch.tensor([10.0, 5.0, 0.0])
    games = torch.tensor([10.0, 10.0, 10.0])
    home = nn.Parameter(torch.zeros(3))

    def loss(i):
        won, played = (wins + 0.5, games + 1) if fixed else (wins, games)
        share = won / played
        strength = torch.log(share) - torch.log1p(-share)  # ORIGIN
        return (strength - home).square().mean()

    return None, train([home], loss)


@fault("degenerate-matrix", "linalg_inv_ex", ops=("_linalg_inv_ex", "linalg_inv", "linalg_lu_factor_ex", "lu_solve", "linalg_solve_ex"), phase="forward")
def transfer_of_two_equal_lenses(fixed):
    lens = nn.Parameter(torch.tensor([[1.0, 2.0], [2.0, 4.0]]))

    def loss(i):
        system = lens + (1e-2 * torch.eye(2) if fixed else 0.0)
        inverse, _ = torch.linalg.inv_ex(system)  # ORIGIN
        return inverse.square().mean()

    return None, train([lens], loss, lr=1e-9)


@fault("softmax-all-masked", "_softmax", ops=("softmax", "_log_softmax"))
def lineup_without_a_free_player(fixed):
    skill = nn.Parameter(seeded(5, 3, 4))
    injured = torch.zeros(3, 4, dtype=torch.bool)
    injured[1] = True
    if fixed:
        injured[1, 0] = False

    def loss(i):
        share = skill.masked_fill(injured, -math.inf).softmax(-1)  # ORIGIN
        return (share * torch.arange(4.0)).sum(-1).mean()

    return None, train([skill], loss)


@fault("empty-reduction", "mean")
def claims_of_a_year_without_one(fixed):
    sizes = torch.tensor([3.0, 5.0, 8.0, 4.0])
    year = torch.tensor([0, 0, 2, 2])
    trend = nn.Parameter(torch.zeros(3))

    def loss(i):
        total = 0.0
        for y in range(3):
            own = sizes[year == y]
            if fixed and not len(own):
                continue
            total = total + (own.mean() - trend[y]).square()  # ORIGIN
        return total

    return None, train([trend], loss)


@fault("std-of-constant", "div", ops=("std",), also=("div-by-zero",))
def variation_of_a_steady_yield(fixed):
    field = nn.Parameter(torch.ones(3, 5) * torch.tensor([[2.0], [3.0], [4.0]]))

    def loss(i):
        noise = 0.1 * seeded(1, 3, 5) if fixed else 0.0
        crop = field + noise
        return ((crop - crop.mean(1, keepdim=True)) / crop.std(1, keepdim=True)).square().mean()  # ORIGIN

    return None, train([field], loss)


@fault("norm-at-zero", "div", ops=("linalg_vector_norm",), also=("div-by-zero",))
def wind_of_a_calm_hour(fixed):
    wind = seeded(6, 5, 2)
    wind[3] = 0.0
    drag = nn.Parameter(torch.ones(2))

    def loss(i):
        force = wind * drag
        length = force.norm(dim=1, keepdim=True)
        return (force / (length.clamp_min(1e-3) if fixed else length)).sum()  # ORIGIN

    return None, train([drag], loss)


@fault("inverse-function-at-edge", "acos", "backward", ops=("acos", "div"))
def hour_angle_at_the_polar_circle(fixed):
    tilt = nn.Parameter(torch.tensor(1.0))

    def loss(i):
        cosine = -torch.tensor([0.2, 0.5, 1.0]) * tilt
        if fixed:
            cosine = cosine.clamp(-0.999, 0.999)
        return torch.acos(cosine).mean()  # ORIGIN

    return None, train([tilt], loss)


@fault("where-grad-trap", "sqrt", "backward", ops=("div", "mul"), also=("sqrt-at-zero",))
def weir_below_its_crest(fixed):
    depth = nn.Parameter(torch.tensor([0.5, 0.0, 1.5]))

    def loss(i):
        head = depth.clamp_min(1e-6) if fixed else depth
        flow = torch.where(depth > 0, torch.sqrt(head), 0.0)  # ORIGIN
        return (flow - 1).square().mean()

    return None, train([depth], loss)


@fault("dtype-overflow", "sum", ops=("mul", "pow", "square"))
def energy_of_a_loud_track_in_half(fixed):
    track = (300 * torch.ones(2, 8)).half()
    gain = nn.Parameter(torch.ones(8, dtype=torch.float16))

    def loss(i):
        loud = track * gain
        if fixed:
            loud = loud.float() / 300
        return loud.square().mean().log()  # ORIGIN

    return None, train([gain], loss, lr=1e-2)


@fault("eps-underflow", "div", ops=("rsqrt",), also=("div-by-zero",))
def contrast_of_a_flat_patch_in_half(fixed):
    patch = torch.full((2, 6), 0.5, dtype=torch.float16)
    shift = nn.Parameter(torch.zeros(6, dtype=torch.float16))

    def loss(i):
        seen = patch + shift
        away = seen - seen.mean(1, keepdim=True)
        spread = away.square().mean(1, keepdim=True)
        return (away / (spread + (1e-2 if fixed else 1e-9))).square().mean()  # ORIGIN

    return None, train([shift], loss)


@fault("div-by-zero", "div", ops=("reciprocal",), also=("zero-times-inf",))
def toll_of_a_road_nobody_takes(fixed):
    count = torch.tensor([3.0, 0.0, 5.0])
    width = torch.tensor([2.0, 0.0, 1.0])
    price = nn.Parameter(torch.ones(3))

    def loss(i):
        delay = price / (width + 1e-3 if fixed else width)  # ORIGIN
        return (count * delay).mean()  # ALSO

    return None, train([price], loss, lr=1e-6)


@fault("log-of-zero", "log", ops=("sub",), also=("inf-minus-inf",))
def odds_of_two_certain_events(fixed):
    low = nn.Parameter(torch.tensor([0.2, 0.0]))
    high = torch.tensor([0.5, 0.0])

    def loss(i):
        eps = 1e-3 if fixed else 0.0
        return (torch.log(low + eps) - torch.log(high + eps)).square().mean()  # ORIGIN

    return None, train([low], loss, lr=1e-4)


@fault("log-of-negative", "log1p", ops=("log",))
def discount_deeper_than_the_price(fixed):
    discount = torch.tensor([0.1, 0.5, 1.2])
    weight = nn.Parameter(torch.ones(()))

    def loss(i):
        taken = (discount * weight).clamp(max=0.95) if fixed else discount * weight
        return -torch.log1p(-taken).mean()  # ORIGIN

    return None, train([weight], loss, lr=1e-4)


@fault("pow-negative-base", "pow")
def allometry_of_a_centred_weight(fixed):
    weight = seeded(2, 6)
    if fixed:
        weight = weight.exp()
    power = nn.Parameter(torch.tensor(0.75))

    def loss(i):
        return (weight**power).mean()  # ORIGIN

    return None, train([power], loss)


@fault("exp-overflow", "exp", step=2, ops=("cosh",), also=("exploding-gradient", "learning-rate"))
def catenary_that_is_pulled_too_fast(fixed):
    tension = nn.Parameter(torch.tensor(4.0))
    at = torch.linspace(-1, 1, 7)

    def loss(i):
        reach = torch.exp(tension * at)  # ORIGIN
        return (2 - reach).mean()

    return None, train([tension], loss, lr=1e-3 if fixed else 2.0)


@fault("div-by-zero", "div", step=2, ops=("reciprocal",))
def average_order_of_a_closed_shop(fixed):
    orders = torch.tensor([[4.0, 3.0], [2.0, 5.0], [6.0, 0.0], [1.0, 1.0]])
    worth = nn.Parameter(torch.ones(2))

    def loss(i):
        number = orders[i % 4]
        mean = (worth * number).sum() / (number.clamp_min(1) if fixed else number)  # ORIGIN
        return mean.mean()

    return None, train([worth], loss)


@fault("inverse-function-domain", "asin", ops=("acos",))
def refraction_into_thinner_glass(fixed):
    sines = torch.sin(torch.linspace(0.2, 1.2, 5))
    ratio = nn.Parameter(torch.tensor(1.33))

    def loss(i):
        sine = (ratio * sines).clamp(-0.99, 0.99) if fixed else ratio * sines
        return torch.asin(sine).mean()  # ORIGIN

    return None, train([ratio], loss)


@fault("degenerate-matrix", "linalg_eigh", "backward", ops=("_linalg_eigh", "div"), steps=1)
def axes_of_a_round_stone(fixed):
    stone = nn.Parameter(torch.eye(3) * 2)

    def loss(i):
        shape = stone + (torch.diag(torch.tensor([0.0, 0.1, 0.3])) if fixed else 0.0)
        _, axes = torch.linalg.eigh(shape)  # ORIGIN
        return (axes * torch.arange(9.0).reshape(3, 3)).sum()

    return None, train([stone], loss)


@fault("log-of-zero", "log", ops=("xlogy",))
def diversity_of_one_species(fixed):
    counts = torch.tensor([[4.0, 1.0], [3.0, 0.0]])
    bias = nn.Parameter(torch.ones(2))

    def loss(i):
        share = counts * bias / (counts * bias).sum(1, keepdim=True)
        entropy = -(share * torch.log(share + (1e-9 if fixed else 0.0))).sum(1)  # ORIGIN
        return entropy.mean()

    return None, train([bias], loss)


@fault("pow-fraction-at-zero", "pow", "backward", ops=("mul", "sqrt"), also=("sqrt-at-zero",))
def hydraulic_radius_of_a_dry_channel(fixed):
    depth = nn.Parameter(torch.tensor([0.0, 0.4, 1.2]))

    def loss(i):
        area = 3 * depth
        wet = (3 + 2 * depth).clamp_min(0.1)
        radius = area / wet + (0.1 if fixed else 0.0)
        return (radius ** (2 / 3)).mean()  # ORIGIN

    return None, train([depth], loss, lr=1e-4)


@fault("div-by-tiny", "div", also=("div-by-zero",), ops=("reciprocal",))
def parallax_of_a_far_quasar(fixed):
    arc = torch.tensor([0.1, 2e-3, 1e-39])
    offset = nn.Parameter(torch.ones(3))

    def loss(i):
        distance = offset / (arc + 1e-4 if fixed else arc)  # ORIGIN
        return distance.log1p().mean()

    return None, train([offset], loss, lr=1e-4)


@fault("repair-forward-only", "log", "backward", ops=("div", "mul"), also=("where-grad-trap", "log-of-zero"))
def magnitude_of_a_quiet_fault(fixed):
    moment = nn.Parameter(torch.tensor([0.0, 10.0, 200.0]))

    def loss(i):
        strain = moment.clamp_min(1e-3) if fixed else moment
        return torch.nan_to_num(torch.log(strain), neginf=0.0).square().mean()  # ORIGIN

    return None, train([moment], loss, lr=1e-4)
