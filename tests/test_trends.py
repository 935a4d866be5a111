"""Trends: an overflow is told before it comes, a healthy run is left in peace."""

from __future__ import annotations

import math
import re

import numpy as np
import pytest
import torch
from torch import nn

import nanlab
from nanlab.topics.forecast import (
    FARTHEST,
    Forecast,
    exponential,
    first_told,
    forecasts,
    outlook,
)
from nanlab.topics.trends import growing_origins, pace, until
from nanlab.trace import Trace
from nanlab.trace.history import MOST_STEPS, Place, Series
from nanlab.trace.op import location

torch.set_num_threads(1)


class Encoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.emb = nn.Embedding(200, 48)
        self.mix = nn.Sequential(nn.Linear(48, 48), nn.GELU(), nn.Dropout(0.4), nn.Linear(48, 48))

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.mix(self.emb(ids)).mean(1)  # type: ignore[no-any-return]


def contrastive(
    temperature: float, steps: int, normalised: bool = False, dropout: float = 0.4
) -> Trace:
    """The write-up S3: embeddings without L2 normalisation, scores under float16 autocast,
    cross-entropy over the batch."""
    torch.manual_seed(405)
    net = Encoder()
    net.mix[2].p = dropout
    opt = torch.optim.Adam(net.parameters(), lr=0.1)
    gen = torch.Generator().manual_seed(505)
    with nanlab.watch(net, on_fault="record") as trace:
        for _ in range(steps):
            ids = torch.randint(0, 200, (16, 8), generator=gen)
            opt.zero_grad()
            with torch.autocast("cpu", dtype=torch.float16):
                a, b = net(ids), net(ids)
                if normalised:
                    a, b = (nn.functional.normalize(v.float(), dim=-1) for v in (a, b))
                scores = a @ b.T / temperature  # SCORES
            loss = nn.functional.cross_entropy(scores.float(), torch.arange(16))
            loss.backward()
            opt.step()
            if not math.isfinite(float(loss.detach())):
                break
    return trace


def line_of(mark: str) -> int:
    with open(__file__) as file:
        return next(i for i, line in enumerate(file, 1) if line.rstrip().endswith(f"# {mark}"))


@pytest.fixture(scope="module")
def grown() -> Trace:
    return contrastive(0.05, 60)


def test_growing_norms_are_told_five_steps_before_the_scores_overflow(grown: Trace) -> None:
    found = next(f for f in forecasts(grown.recording) if f.reached is not None)
    assert found.lead is not None and found.lead >= 5
    assert found.place.dtype == "float16" and found.interval[0] <= found.steps <= found.interval[1]
    warning = next(
        f for f in grown.findings if f.severity == "warning" and f.symptom == "trend-overflow"
    )
    assert warning.line == line_of("SCORES") and warning.step == found.step
    assert "steps" in warning.title


def test_cause_is_the_missing_normalisation_and_not_the_false_trails(grown: Trace) -> None:
    culprit = grown.culprit
    assert culprit is not None and (culprit.cause, culprit.line) == (
        "dtype-overflow",
        line_of("SCORES"),
    )
    assert "nothing normalises" in culprit.explanation.lower()
    assert any("normalize" in fix.code for fix in culprit.fixes)
    words = " ".join(
        [culprit.title, culprit.explanation, *(f.title for f in culprit.fixes)]
    ).lower()
    assert not any(
        re.search(rf"\b{trail}\b", words)
        for trail in ("batch size", "dropout", "eps", "learning rate")
    )


def test_normalised_embeddings_are_not_warned_of() -> None:
    trace = contrastive(0.05, 60, normalised=True)
    assert trace.findings == [] and forecasts(trace.recording) == []


def test_growth_is_followed_back_to_the_embeddings(grown: Trace) -> None:
    series = grown.recording.training.series
    found = next(f for f in forecasts(grown.recording) if f.reached is not None)
    ops = {series.places[c].op for c in growing_origins(series, found.column)}
    assert ops & {"mm", "addmm"} and "mean" in ops


@pytest.mark.parametrize("slope", [0.2, 0.5, 2.0])
def test_steady_growth_is_extrapolated_exactly(slope: float) -> None:
    values = 10.0 + slope * np.arange(12)
    found = exponential(values, 16.0 + 11 * slope)
    assert found is not None
    assert found[0] == pytest.approx(slope) and found[1] == pytest.approx(6.0 / slope)
    assert found[2] == pytest.approx(found[1]) == found[3]


def test_interval_holds_the_true_step_in_nine_of_ten_noisy_runs() -> None:
    rng = np.random.default_rng(0)
    inside = 0
    for _ in range(200):
        values = 10.0 + 0.25 * np.arange(16) + rng.normal(0, 0.15, 16)
        found = exponential(values, 16.0)
        assert found is not None
        true = (16.0 - (10.0 + 0.25 * 15)) / 0.25
        inside += found[2] - 1.0 <= true <= found[3] + 1.0
    assert inside >= 180


@pytest.mark.parametrize(
    "values",
    [
        np.full(40, 14.0),
        16.0 - 6.0 * np.exp(-np.arange(40) / 6.0) - 0.5,
        14.0 + np.sin(np.arange(40)),
        np.concatenate([np.linspace(4, 14, 20), np.linspace(14, 4, 20)]),
    ],
    ids=["constant", "levels off", "swings", "falls again"],
)
def test_what_does_not_keep_climbing_is_not_told(values: np.ndarray) -> None:
    assert outlook(values, 16.0, wide=False) is None


def test_a_climb_is_told_only_if_forecasts_of_it_came_true() -> None:
    at = np.arange(1.0, 101.0)
    for seed in range(5):
        noise = 1 + 0.02 * np.random.default_rng(seed).standard_normal(100)
        climbs, settles = 600 * at * noise, 40_000 * (1 - np.exp(-at / 25)) * noise
        assert first_told(np.log2(climbs), 16.0, wide=False) is not None
        assert first_told(np.log2(settles), 16.0, wide=False) is None


def test_what_is_far_ahead_is_not_told() -> None:
    assert (
        outlook(10.0 + 0.01 * np.arange(24) + np.array([0.0] * 23 + [3.0]), 16.0, wide=False)
        is None
    )
    assert outlook(np.linspace(0, 11, 24), 128.0, wide=True) is None
    assert FARTHEST < 100


def test_series_forgets_the_oldest_steps_and_stays_small() -> None:
    series = Series()
    place = Place(0, "mm", 0, 0, -1, 1, 1, "float16")
    keys = np.arange(5, dtype=np.uint64)
    for step in range(3 * MOST_STEPS):
        columns, new = series.columns_of(
            keys.astype(np.int64)[:, None], lambda identity: identity[:, 0].astype(np.uint64)
        )
        for _ in new:
            series.places.append(place)
            series.parents.append(())
        series.add(step, columns, np.full(5, float(step), np.float32))
    assert len(series) <= MOST_STEPS and series.values.size <= 2 * MOST_STEPS * 256
    assert series.steps[-1] == 3 * MOST_STEPS - 1
    assert np.array_equal(series.table[:, 0], np.array(series.steps, np.float32))


# -- on the way to zero
# ------------------------------------------------------------


def annealed(
    pace: float, steps: int, dtype: torch.dtype = torch.float16, scaled: bool = False
) -> Trace:
    """A loss whose weight falls in each step: under float16 autocast its gradient is flushed in the
    end."""
    torch.manual_seed(0)
    net = nn.Linear(6, 6)
    opt = torch.optim.SGD(net.parameters(), lr=1e-3)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**12, growth_interval=4)
    x = torch.randn(16, 6)
    with nanlab.watch(net, on_fault="record") as trace:
        for i in range(steps):
            opt.zero_grad()
            with torch.autocast("cpu", dtype=dtype):
                out = net(x)  # ANNEALED
            wide = out.float()  # CAST
            loss = wide.square().mean() * pace**i
            if scaled:
                scaler.scale(loss).backward()
                scaler.step(opt)
                scaler.update()
            else:
                loss.backward()
                opt.step()
    assert not trace.notes
    return trace


def test_gradient_on_its_way_to_zero_is_told_at_least_five_steps_before() -> None:
    trace = annealed(0.6, 45)
    found = next(
        f for f in forecasts(trace.recording) if f.end == "underflow" and f.reached is not None
    )
    assert found.lead is not None and found.lead >= 5
    assert found.interval[0] - 1 <= found.lead <= found.interval[1] + 1
    assert found.slope == pytest.approx(math.log2(0.6), abs=0.02)
    warning = next(f for f in trace.findings if f.symptom == "trend-underflow")
    assert (warning.cause, warning.severity, warning.phase) == (
        "dtype-underflow",
        "warning",
        "backward",
    )
    assert (
        warning.source.endswith(("# CAST", "# ANNEALED")) and "GradScaler" in warning.fixes[0].code
    )


def test_a_line_is_said_once_to_be_on_its_way_to_zero() -> None:
    trace = annealed(0.6, 45)
    told = [trace.recording.places[f.place.line][:2] for f in forecasts(trace.recording)]
    lines = [f.line for f in trace.findings if f.symptom == "trend-underflow"]
    assert len(told) > len(set(told))
    assert lines and len(lines) == len(set(lines))


def test_warning_comes_while_there_is_still_something_left() -> None:
    trace = annealed(0.6, 26)
    assert {(f.end, f.reached) for f in forecasts(trace.recording)} == {("underflow", None)}
    titles = [f.title for f in trace.findings]
    assert titles and all(" is on its way to zero in float16: " in title for title in titles)
    assert all("times as large each step; it is all zero in " in title for title in titles)


@pytest.mark.parametrize(
    ("dtype", "pace", "scaled"),
    [
        (torch.bfloat16, 0.6, False),
        (torch.float16, 1.0, False),
        (torch.float16, 0.97, False),
        (torch.float16, 0.6, True),
    ],
    ids=["bfloat16 has room", "steady", "slowly, far from the limit", "a scaler keeps up"],
)
def test_gradient_that_stays_in_range_is_not_told(
    dtype: torch.dtype, pace: float, scaled: bool
) -> None:
    assert annealed(pace, 24, dtype, scaled).findings == []


def far(steps: float, low: float, high: float, slope: float = 1.0) -> Forecast:
    place = Place(0, "mm", 0, 0, -1, 1, 1, "float16")
    return Forecast(0, place, "overflow", 3, 16.0, 12.0, slope, steps, (low, high))


@pytest.mark.parametrize(
    ("forecast", "words"),
    [
        (far(0.4, 0.3, 0.6), "in the next step"),
        (far(1.2, 1.0, 1.4), "in the next step"),
        (far(1.2, 0.9, 3.4), "in about 1 step (1 to 3)"),
        (far(7.0, 7.0, 7.0), "in about 7 steps"),
        (far(12.0, 8.2, math.inf), "in about 12 steps (8 to many)"),
    ],
)
def test_when_it_happens_is_said_in_plain_words(forecast: Forecast, words: str) -> None:
    assert until(forecast) == words


@pytest.mark.parametrize(
    ("slope", "words"),
    [(0.5, "1.41"), (16.86, "1.2e5"), (-1.0, "0.5"), (-20.0, "9.5e-7"), (9.5, "724")],
)
def test_pace_is_a_short_number(slope: float, words: str) -> None:
    assert pace(slope) == f"{words} times as large each step"


def test_the_turns_of_a_solver_in_the_forward_pass_are_no_steps_of_a_trend() -> None:
    """The loop comes round before the first backward, so that each turn looks like a training step
    until then."""
    net = nn.Linear(3, 3)
    opt = torch.optim.SGD(net.parameters(), 1e-12)
    with nanlab.watch(net, on_fault="record") as trace:
        for _ in range(3):
            state = torch.ones(2, 3)
            for _ in range(12):
                state = state + 0.1 * net(state)
                error = state.square().mean() * 1e9  # much larger at each turn
                scaled = error * 10.0 ** len(state)
                state = state * (1.0 + 3.0 * float(scaled.detach() > 0))
            opt.zero_grad()
            (state.mean() * 1e-9).backward()
            opt.step()
    assert len(trace.steps) == 3 and len(trace.recording.training.series) == 3
    assert not forecasts(trace.recording)


# -- what is said of the cause
# ------------------------------------------------------------


def penalised(steps: int) -> Trace:
    """A penalty on input gradients in float16 that bear a factor of 64: the weights grow, and the
    square overflows."""
    torch.manual_seed(915)
    net = nn.Sequential(nn.Linear(2, 16), nn.LeakyReLU(0.2), nn.Linear(16, 1)).half()
    with nanlab.watch(net, on_fault="record") as trace:
        for _ in range(steps):
            x = torch.randn(16, 2).half().requires_grad_()
            score = net(x).sum() * 64.0  # SCALED
            (grad,) = torch.autograd.grad(score, x, create_graph=True)
            penalty = grad.pow(2).sum(1).float().mean()  # SQUARE
            net.zero_grad()
            (penalty * 2.0**-12).backward()
            with torch.no_grad():
                for p in net.parameters():
                    p.mul_(1.15)
    return trace


def test_a_constant_factor_is_named_rather_than_a_missing_normalisation() -> None:
    culprit = penalised(16).culprit
    assert culprit is not None and culprit.source.endswith("# SQUARE")
    told = f"constant factor of mul ({location(__file__, line_of('SCALED'))}) makes it another 64 times larger"
    assert told in culprit.explanation, culprit.explanation
    assert "normalises" not in culprit.explanation and not any(
        "normalize" in fix.code for fix in culprit.fixes
    )
    assert any(fix.code == "values = values / 64" for fix in culprit.fixes)  # x is the input


def test_only_the_steps_before_the_overflow_are_counted() -> None:
    culprits = [penalised(steps).culprit for steps in (16, 24)]
    assert (
        all(c is not None for c in culprits)
        and len({c.title for c in culprits if c is not None}) == 1
    )
    assert (
        culprits[0] is not None and f"in {culprits[0].step} steps, then to inf" in culprits[0].title
    )


def test_float32_is_no_cure_for_what_overflows_float32() -> None:
    torch.manual_seed(0)
    net, x = nn.Sequential(nn.Linear(8, 8)), torch.randn(16, 8)
    opt = torch.optim.SGD(net.parameters(), lr=12.0)
    with nanlab.watch(net, on_fault="record") as trace:
        for _ in range(24):
            opt.zero_grad()
            (net(x) - 5 * x).square().mean().backward()
            opt.step()
    warnings = [f for f in trace.findings if f.symptom == "trend-overflow"]
    assert warnings and all(f.title.count("float32") == 1 for f in warnings)
    assert not any(
        "float32" in fix.title or "normalize" in fix.code for f in warnings for fix in f.fixes
    )
    assert any('group["lr"]' in fix.code for f in warnings for fix in f.fixes)


def test_a_jump_is_no_trend_and_growth_that_goes_on_after_one_is() -> None:
    # log2 of an optimizer's rescaled rate, as it was seen
    low = [-12.0, -12.5, -12.2, -12.6, -12.9]
    rests = np.array([*low, 22.8, 22.9, 23.0, 22.9, 23.1, 23.0])
    goes_on = np.array([*low, 22.8, 32.0, 41.0, 50.0])
    assert first_told(rests, 128.0, wide=True) is None
    assert first_told(goes_on, 128.0, wide=True) is not None


LIMIT = math.log2(65504)
TIME = np.arange(200.0)
SHAPES = {  # of the magnitude, or (width) of the logarithm that falls
    "linear": np.log2(700.0 * (TIME + 1)),
    "quadratic": np.log2(20.0 * (TIME + 10) ** 2),
    "by jumps": np.log2(2000.0 * (TIME // 3 + 1)),
    "exponential": 5.0 + 0.3 * TIME,
    "slow exponential": 2.0 + 0.1 * TIME,
    "ever faster": 0.5 * 1.08**TIME,
}


@pytest.mark.parametrize("shape", SHAPES)
def test_growth_of_every_shape_is_foreseen_five_steps_ahead_and_not_much_too_early(
    shape: str,
) -> None:
    noise = np.random.default_rng(3).normal(0, 0.02, 200)
    values = SHAPES[shape] + noise
    end = int(np.argmax(values >= LIMIT))
    told = [at for at in range(end) if outlook(values[: at + 1], LIMIT, False) is not None]
    assert told
    assert 5 <= end - told[0] <= 30


@pytest.mark.parametrize("seed", range(4))
def test_noisy_growth_is_foreseen_from_a_longer_course(seed: int) -> None:
    values = np.log2(1.7 * (TIME + 5) ** 2) + np.random.default_rng(seed).normal(0, 0.3, 200)
    end = int(np.argmax(values >= LIMIT))
    told = first_told(values[:end], LIMIT, False)
    assert told is not None
    assert end - told[0] >= 5


@pytest.mark.parametrize(
    "course",
    [
        40000 * (1 - 0.93**TIME) + 1,
        45000 * (TIME + 1) / (TIME + 21),
        30000 + 15000 * np.sin(TIME / 7),
        300.0 * np.minimum(TIME, 100) + 1,
        20000 + 150.0 * (TIME % 50),
        900.0 * (TIME % 30) + 1,
    ],
    ids=["with decay", "levels off", "cycle", "ends", "saw", "reset to nothing"],
)
def test_growth_that_ends_below_the_limit_is_not_told(course: np.ndarray) -> None:
    values = np.log2(course) + np.random.default_rng(4).normal(0, 0.01, 200)
    assert first_told(values, LIMIT, False) is None


def test_straight_climb_is_told_within_half_of_the_steps_in_which_it_was_seen() -> None:
    values = np.log2(1200.0 * np.arange(1, 55))  # float16 ends in the 55th step
    told = [outlook(values[:seen], LIMIT, False) is not None for seen in range(1, 54)]
    first = told.index(True) + 1
    assert 36 <= first <= 49


def test_an_end_that_recedes_while_it_is_looked_at_is_not_told() -> None:
    """The first cycle of a triangular learning rate: bits that are left, as they were seen."""
    left = [6.8, 4.6, 4.3, 3.6, 3.6, 3.2, 2.9, 2.7, 3.2, 2.4, 2.2, 2.7, 2.9]
    values = 16.0 - np.array(left)
    assert all(outlook(values[:seen], 16.0, wide=False) is not None for seen in (10, 11, 12))
    assert first_told(values, 16.0, wide=False) is None


def weighed(steps: int, normalise: bool) -> Trace:
    """A particle filter whose weights are multiplied by likelihoods, one step after another."""
    gen = torch.Generator().manual_seed(0)
    places = torch.linspace(-0.05, 0.05, 8)
    weights = torch.ones(8) / 8
    mean = torch.zeros(1, requires_grad=True)
    with nanlab.watch(on_fault="record") as trace:
        for _ in range(steps):
            seen = 0.7 * torch.randn((), generator=gen)
            weights = weights * torch.exp(-0.5 * (seen - places) ** 2) / 2.5
            shares = weights / weights.sum()
            if normalise:
                weights = shares
            mean.grad = None
            (mean - (shares * places).sum()).square().sum().backward()
    return trace


def test_a_divisor_that_fades_in_float32_is_told_of_before_it_is_zero() -> None:
    trace = weighed(90, normalise=False)
    told = [f for f in forecasts(trace.recording) if f.end == "underflow"]
    assert told
    assert told[0].place.dtype == "float32"
    reached = [f for f in told if f.reached is not None]
    assert min(f.lead for f in reached) >= 5
    warning = next(f for f in weighed(60, normalise=False).findings if f.severity == "warning")
    assert warning.cause == "dtype-underflow"
    assert "weights" in warning.source


def test_normalised_weights_and_a_loss_that_converges_are_no_divisors_that_fade() -> None:
    assert not forecasts(weighed(90, normalise=True).recording)
    w = torch.ones(4, requires_grad=True)
    with nanlab.watch(on_fault="record") as trace:
        for _ in range(60):  # to 1e-36, and nothing is divided by it
            w.grad = None
            w.square().sum().backward()
            with torch.no_grad():
                w *= 0.5
    assert not forecasts(trace.recording)


def maxima(seed: int, steps: int) -> list[float]:
    """The largest score of noisy vectors that grow by a constant factor, in bits."""
    torch.manual_seed(seed)
    x = [torch.randn(8, 4) * 0.6 * 1.3**i for i in range(steps)]
    return [math.log2(float((h @ h.T).abs().max())) for h in x]


def test_noise_is_no_acceleration_and_the_pace_is_what_was_seen() -> None:
    told, too_soon = 0, 0
    for seed in range(40):
        course = np.array(maxima(seed, 40))
        for steps in range(10, int(np.flatnonzero(course > 16.0)[0]) + 1):
            found = first_told(course[:steps], 16.0, False, still=True)
            if found is not None:
                slope, left, _, _ = found[1]
                assert 1.1 < 2**slope < 3.5  # 1.69 times, and the noise of a few steps
                told += 1
                too_soon += (16.0 - course[steps - 1]) / max(left, 1.0) > 3.0  # bits in each step
    assert told > 150 and too_soon < 0.02 * told


def test_of_results_on_one_course_the_nearest_to_its_limit_is_told() -> None:
    w = torch.nn.Parameter(torch.ones(4, 4))
    with nanlab.watch(on_fault="record") as trace:
        for i in range(11):
            w.grad = None
            half = (w * 2.0 ** (0.06 * i * i)).half()
            scores = half @ half.T / 0.07
            scores.float().mean().backward()
    titles = [f.title for f in trace.findings if "on its way out" in f.title]
    assert titles and not any("result of mm" in title for title in titles), titles
