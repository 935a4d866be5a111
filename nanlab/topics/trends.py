"""Results that grow or shrink until their dtype ends: told before, explained after."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import pandas as pd
import torch

from nanlab.analysis.training import where
from nanlab.findings.fault import Fault, plural
from nanlab.findings.rule import Finding, Fix, rule
from nanlab.formats import format_of
from nanlab.operators import having
from nanlab.topics.scaler import scaled_loss
from nanlab.trace import Trace
from nanlab.trace.frames import StepRows
from nanlab.trace.history import FEWEST_STEPS, Place, Series, place_at
from nanlab.trace.op import BACKWARD, OPTIMIZER, location, walk
from nanlab.trace.recording import Recording

# How large each result is, step after step: one vector for each training step, made when it
# ends.

_FACTOR = np.uint64(1_000_003)


def follow(series: Series, rows: StepRows, written: list[tuple[int, int]]) -> None:
    """Add a step to the series. ``written``: (owner, position) of parameters and buffers."""
    chosen = np.flatnonzero(rows.floating & rows.numbers["known"] & ~rows.columns.view)
    if not len(chosen):
        return
    columns, new = series.columns_of(rows.columns[chosen].identity, _keys)
    with np.errstate(divide="ignore", invalid="ignore"):
        magnitudes = np.log2(
            np.where(np.isnan(rows.largest[chosen]), 0.0, rows.largest[chosen])
        ).astype(np.float32)
    numbers = rows.numbers
    magnitudes[(numbers["nan"] + numbers["posinf"] + numbers["neginf"])[chosen] > 0] = np.inf
    column_at = (
        dict(zip((chosen + rows.start).tolist(), columns.tolist(), strict=True)) if len(new) else {}
    )
    for i in new.tolist():
        position = rows.start + int(chosen[i])
        place = place_at(rows.recording, position)
        assert place is not None  # the step that has just ended is never folded
        series.places.append(place)
        series.parents.append(_parents(rows.recording, position, column_at))
    if len(new):
        for owner, position in written:
            series.owners.setdefault(column_at.get(position, -1), owner)
    series.add(rows.start + len(rows), columns, magnitudes)


def _keys(identity: npt.NDArray[np.int64]) -> npt.NDArray[np.uint64]:
    """One number for each identity that is the same in every step for the same result."""
    key = np.zeros(len(identity), np.uint64)
    for column in identity.T:
        key = key * _FACTOR + column.astype(np.uint64)
    occurrence = pd.Series(key).groupby(key).cumcount().to_numpy().astype(np.uint64)
    return key * _FACTOR + occurrence


def _parents(recording: Recording, position: int, column_at: dict[int, int]) -> tuple[int, ...]:
    """Columns of what a row was computed from, views looked through."""
    sources = [recording.unviewed(source) for source, _ in recording.own_operands(position)]
    return tuple(dict.fromkeys(column_at[s] for s in sources if s in column_at))


# Where magnitudes are heading: which result will overflow its dtype or be flushed to zero, and
# in about how many steps.

Array = npt.NDArray[np.float64]
End = Literal["overflow", "underflow"]
WINDOW = 24  # steps that a fit looks back over
NEAR = 8.0  # bits before the limit of a narrow dtype from which on growth matters
FAST_NEAR, SOON = 14.0, 8.0  # the same for growth that gets there for certain within so many steps
LARGE = 20.0  # log2 of the magnitude from which on it matters in a dtype of float32's range
CLIMBED = 3.0  # bits that a result must have climbed within the window
CLIMBED_FAR = 10.0  # ... in a dtype of float32's range
# bits before the limit from which on another shape than the exponential is looked for
NEAR_STEADY = 21.0
FEWEST_STEADY = 8  # steps that a fit of another shape than the exponential needs
WINDOWS_STEADY = 48, 192  # steps that it looks back over; the more the noisier the course is
CLIMBED_STEADY = 0.3  # bits that such a result must have climbed
CLIMBED_SLOWLY = 1.0  # the same for an exponential too slow for the shorter window
FELL = 2.0  # bits by which a result falls that is reset, rather than noisy
SOON_STEADY = 15.0  # steps within which it must get there
REACH = 0.5  # of the steps that a shape was seen in, to look ahead
EXPLAINED = 0.92  # share of its course that the shape must explain
# climb of the last steps over that of all, below which a result has come to rest or levels off
RESTED = 0.85
FARTHEST = 48.0  # steps: what lies further ahead is not told
LOOKS = 3  # steps in a row in which it must be foreseen
MOST_CARRIED = 256  # operations upstream in which what is carried from step to step is looked for
DOUBT = 2.0  # standard errors on either side of the slope: an interval of about 95 %


@dataclass(frozen=True, slots=True)
class Forecast:
    """A result on its way out of its dtype's range, as it looked at the end of one step."""

    column: int  # of the series
    place: Place
    end: End
    step: int  # training step at whose end it could first be told
    # log2 of the largest number of its dtype, or of the magnitude up to which it rounds to zero
    limit: float
    value: float  # log2 of the largest magnitude then
    slope: float  # bits per step, negative on the way to zero
    steps: float  # until it gets there
    interval: tuple[float, float]  # of that; the upper end may be inf
    reached: int | None = None  # training step at which it did: inf or NaN, or nothing but zeros

    @property
    def lead(self) -> int | None:
        """Steps between the warning and the fault; None if there was none."""
        return None if self.reached is None else self.reached - self.step


def _limit(name: str, end: End) -> float:
    dtype = getattr(torch, name, None)
    if not isinstance(dtype, torch.dtype):
        return math.inf
    limits = format_of(dtype)
    if end == "overflow":
        return math.log2(limits.max)
    # 2**-1075 of float64 is 0 itself
    return -math.log2(limits.rounds_to_zero) if limits.rounds_to_zero else math.inf


def limits_of(series: Series, end: End = "overflow") -> Array:
    """log2 of the largest number of each column; for underflow minus that of the smallest."""
    known = {name: _limit(name, end) for name in {place.dtype for place in series.places}}
    return np.array([known[p.dtype] for p in series.places])


def towards(series: Series, end: End) -> Array:
    """A series' table with its end at +inf: underflow's logarithms are negated."""
    table = series.table.astype(np.float64)
    return table if end == "overflow" else -table


def exponential(
    values: Array, limit: float, explained: float = 0.0
) -> tuple[float, float, float, float] | None:
    """(slope, steps left, least, most) of a result that climbs towards a limit; None if it does
    not.

    values: log2 of the magnitude at successive steps, NaN where unseen. A straight line through the
    logarithms by least squares; the interval is that of the slope, two standard errors wide on
    either side.
    """
    at = np.flatnonzero(np.isfinite(values))
    if len(at) < FEWEST_STEPS:
        return None
    found = _line(at.astype(np.float64), values[at], limit, explained)
    return None if found is None else _of_line(found, limit - float(values[at[-1]]))


def _slope(x: Array, y: Array) -> tuple[float, float]:
    """The slope of a straight line, and its standard error."""
    centred, spread = x - x.mean(), y - y.mean()
    squares = float(centred @ centred)
    slope = float(centred @ spread) / squares
    residual = spread - slope * centred
    return slope, math.sqrt(float(residual @ residual) / max(len(x) - 2, 1) / squares)


def steady(values: Array, limit: float) -> tuple[float, float, float, float] | None:
    """The same for what climbs as a power of time, or as the exponential of one: a running sum, a
    norm, a width that anneals.

    Each shape is a straight line in its own coordinates: the magnitude, its square root, the
    logarithm of the logarithm. Found is the one that explains most of the course, and more than an
    exponential does.
    """
    at = np.flatnonzero(np.isfinite(values))
    if len(at) < FEWEST_STEADY:
        return None
    x, y = at.astype(np.float64), values[at]
    least = min(CLIMBED_STEADY, 2 * (limit - float(y[-1])))
    if y[-1] - y[0] < least:
        return None
    shapes = [(x, np.exp2((y - limit) / power), 1.0) for power in (1.0, 2.0)]
    # where its logarithm has one, too
    late = int(np.flatnonzero(y <= 1.0)[-1]) + 1 if (y <= 1.0).any() else 0
    if len(y) - late >= FEWEST_STEADY and y[-1] - y[late] >= max(CLIMBED, (limit - y[-1]) / 2):
        shapes.append((x[late:], np.log2(y[late:]), math.log2(limit)))
    straight = _line(x, y, limit)
    best: tuple[float, float, float, float] | None = None
    for when, z, end in shapes:
        found = _line(when, z, end)
        least_explained = max(best[0] if best else 0.0, straight[0] if straight else 0.0)
        if found is not None and found[0] > least_explained:
            best = found
    return None if best is None else _of_line(best, limit - float(y[-1]))


def slow(values: Array, limit: float) -> tuple[float, float, float, float] | None:
    """The same for an exponential that climbs too little within the shorter window."""
    known = values[np.isfinite(values)]
    if len(known) <= WINDOW or known[-1] - known[0] < CLIMBED_SLOWLY:
        return None
    return exponential(values, limit, EXPLAINED)


def _of_line(
    line: tuple[float, float, float, float], distance: float
) -> tuple[float, float, float, float]:
    """(slope, steps left, least, most) of a line that is that many bits from the limit."""
    _, left, least, most = line
    return distance / left if left > 0 else distance, left, least, most


def _line(
    x: Array, z: Array, end: float, explained_least: float = EXPLAINED
) -> tuple[float, float, float, float] | None:
    """(share a straight line explains, steps left, least, most); None: too little.

    It must have climbed lately, too. explained_least: 0 for the recent course of an exponential;
    of another the parabola says when it gets there, if at all, where it bends down for certain.
    """
    slope, error = _slope(x, z)
    spread, centred = z - z.mean(), x - x.mean()
    residual = spread - slope * centred
    explained = 1.0 - float(residual @ residual) / max(float(spread @ spread), 1e-300)
    if slope <= DOUBT * error or explained < explained_least:
        return None
    # what is noisy gets there with the highest of its values
    noise = residual[-len(x) // 2 :].max() if explained_least else max(residual[-1], 0.0)
    distance = end - float(z[-1] - residual[-1] + noise)
    ahead = max(2 * FEWEST_STEADY, math.ceil(distance / slope))
    lately = ahead if explained_least else len(x) // 2
    late, doubt = _slope(x[-lately:], z[-lately:])
    if late + DOUBT * doubt < RESTED * slope:
        return None
    bent = _left_of_parabola(x, z, end) if explained_least else 0.0
    left = max(distance / slope, bent)
    if explained_least and left > REACH * float(x[-1] - x[0]):
        return None
    low, high = (distance / left - sign * DOUBT * error for sign in (1, -1)) if left else (1.0, 1.0)
    return (explained, left, distance / high, distance / low) if low > 0 else None


def _left_of_parabola(x: Array, z: Array, end: float) -> float:
    """Steps until a parabola reaches the end, inf: never; 0 unless it bends down for certain."""
    at = (x - x[-1]) / (x[-1] - x[0])
    powers = np.stack([np.ones(len(at)), at, at * at], 1)
    (height, pace, bend), *_ = np.linalg.lstsq(powers, z, rcond=None)
    residual = z - powers @ (height, pace, bend)
    spread = float(residual @ residual) / (len(x) - 3) * np.linalg.inv(powers.T @ powers)[2, 2]
    if bend >= -DOUBT * math.sqrt(spread):
        return 0.0
    inside = pace * pace - 4 * bend * (height - end)
    if pace <= 0 or inside < 0:
        return math.inf
    return float((math.sqrt(inside) - pace) / (2 * bend) * (x[-1] - x[0]))


def outlook(values: Array, limit: float, wide: bool) -> tuple[float, float, float, float] | None:
    """The fit over the last steps, where what it says is near and sure enough to be told."""
    recent = values[-WINDOW:]
    known = recent[np.isfinite(recent)]
    if len(known) < FEWEST_STEPS or known[-1] != recent[-1] or _came_back(values):
        return None
    distance = limit - float(known[-1])
    if not wide and distance <= NEAR_STEADY:
        short, long = (steady(values[-window:], limit) for window in WINDOWS_STEADY)
        if short is not None:
            return short if short[1] <= SOON_STEADY else None
        for found in (long, *(slow(values[-window:], limit) for window in WINDOWS_STEADY)):
            if found is not None and found[1] <= SOON_STEADY:
                return found
    if known[-1] < LARGE if wide else distance > FAST_NEAR:
        return None
    if known[-1] - known[0] < (CLIMBED_FAR if wide else CLIMBED):
        return None
    found = exponential(recent, limit)
    if found is None or found[1] > (FARTHEST if wide else SOON):
        return None
    fast = len(known) > FEWEST_STEPS and found[3] <= SOON
    return found if wide or distance <= NEAR or fast else None


def _came_back(values: Array) -> bool:
    """Whether it was as large before it fell to this climb: a sum that is reset, a cycle."""
    known = values[np.isfinite(values)]
    began = len(known) - 1 - int(np.argmin(known[-WINDOW:][::-1]))
    before = float(known[:began].max()) if began else -math.inf
    return before >= float(known[-1]) and before - float(known[began]) >= FELL


def candidates(recording: Recording, end: End = "overflow") -> Iterator[tuple[int, float, bool]]:
    """(column, limit, whether it has float32's range) of the results that came near enough to a
    limit to matter.

    Only dtypes narrower than float32's range underflow by a trend. Gradients whose loss a scaler
    scales are left to it.
    """
    series = recording.training.series
    if not len(series):
        return
    table, limits = towards(series, end), limits_of(series, end)
    finite = np.where(np.isfinite(table), table, np.nan)
    highest, lowest = np.full(len(limits), -np.inf), np.full(len(limits), np.inf)
    some = ~np.isnan(finite).all(axis=0)
    highest[some], lowest[some] = (
        np.nanmax(finite[:, some], axis=0),
        np.nanmin(finite[:, some], axis=0),
    )
    wide = limits > 64
    near = np.where(wide, LARGE if end == "overflow" else np.inf, limits - FAST_NEAR)
    scaled = bool(recording.training.unscales)
    for column in np.flatnonzero((highest >= near) & (highest > lowest)).tolist():
        left_to_scaler = scaled and series.places[column].phase == BACKWARD
        if not left_to_scaler and not _is_bounded(recording, column, float(limits[column])):
            yield column, float(limits[column]), bool(wide[column])


_CLAMPS, _SAME = having("clamps"), having("copies")


def _is_bounded(recording: Recording, column: int, limit: float) -> bool:
    """Whether a clamp in the same step keeps a result below a limit."""
    series, at = recording.training.series, column
    for _ in range(HOPS):
        place = series.places[at]
        if place.op in _CLAMPS:
            return any(0 < bound < 2.0**limit for bound in _bounds(recording, place))
        if place.op not in _SAME or len(series.parents[at]) != 1:
            return False
        at = series.parents[at][0]
    return False


def _bounds(recording: Recording, place: Place) -> list[float]:
    """The numbers that the last call of a clamp was given."""
    for segment in reversed(recording.program.segments):
        for call in segment.calls:
            op = recording.op(call.position)
            if op is not None and op.place == place.line and op.name == place.op:
                return [float(n) for n in call.args[1:] if isinstance(n, int | float)]
    return []


def forecasts(recording: Recording) -> list[Forecast]:
    """What was on its way out of range, the earliest warned first.

    A result that overflowed, or all of which underflowed, is told with the first step at whose end
    that could be told; another only if it is on its way still at the last step.
    """
    found = [*_forecasts(recording, "overflow"), *_forecasts(recording, "underflow")]
    # What reached its end in the same step followed from the first operation that did.
    return sorted(
        found,
        key=lambda f: (
            f.reached is None,
            f.steps if f.reached is None else f.reached,
            f.place.position,
        ),
    )


def _forecasts(recording: Recording, end: End) -> Iterator[Forecast]:
    series, sign = recording.training.series, 1.0 if end == "overflow" else -1.0
    steps = np.searchsorted(recording.starts, np.array(series.steps), side="left") - 1
    table, rows = towards(series, end), _rows_before_poison(recording)
    for column, limit, wide in candidates(recording, end):
        values = table[:rows, column]
        bad = np.flatnonzero(np.isposinf(values))
        until = int(bad[0]) if len(bad) else len(values)
        told = first_told(values[:until], limit, wide, still=not len(bad))
        if told is not None:
            at, (slope, left, least, most) = told
            over = int(steps[bad[0]]) if len(bad) else None
            interval, value = (least, most), sign * float(values[at])
            yield Forecast(
                column,
                series.places[column],
                end,
                int(steps[at]),
                sign * limit,
                value,
                sign * slope,
                left,
                interval,
                over,
            )


def _rows_before_poison(recording: Recording) -> int:
    """Steps of the series up to the first harm; what grows after it is debris."""
    series = recording.training.series
    if not recording.sinks or recording.training.unscales:
        return len(series)
    return int(np.searchsorted(series.steps, recording.sinks[0].step_position, side="right")) + 1


def first_told(
    values: Array, limit: float, wide: bool, still: bool = False
) -> tuple[int, tuple[float, float, float, float]] | None:
    """(row, fit) of the first step at whose end a user hears of it; ``still``: only of the last.

    Told is what was foreseen in each of the last steps, where the end has come no farther away
    since the first of them: it recedes where a climb slows down.
    """
    looks: list[tuple[float, float, float, float]] = []
    start = len(values) - LOOKS if still else 0
    for at in range(max(start, FEWEST_STEPS - 1), len(values)):
        seen = outlook(values[: at + 1], limit, wide)
        looks = [] if seen is None else [*looks, seen][-LOOKS:]
        if len(looks) == LOOKS and looks[-1][1] <= looks[0][1]:
            return at, looks[-1]
    return None


def growth(series: Series, column: int) -> float:
    """Bits by which a result climbed, from the first steps to the last finite ones."""
    values = series.table[:, column]
    known = values[np.isfinite(values)]
    if len(known) < FEWEST_STEPS:
        return 0.0
    ends = max(1, min(3, len(known) // 3))
    return float(np.median(known[-ends:]) - np.median(known[:ends]))


def carried(recording: Recording, position: int) -> bool:
    """Whether a large result of an earlier step, no parameter, went in: a hidden state."""
    now = recording.step_of(position)

    def in_step(at: int) -> list[int]:
        return [p for p in recording.parents(at) if p >= 0] if recording.step_of(at) >= now else []

    for at in walk([position], in_step, MOST_CARRIED):
        row, stats = recording.op(at), recording.stats(at)
        if recording.step_of(at) < now and stats is not None:
            large = stats.largest > 2.0**LARGE
            if large and row is not None and row.phase != OPTIMIZER and not row.without_grad:
                return True
    return False


def growing_origins(series: Series, column: int, hops: int = 12, sign: float = 1.0) -> list[int]:
    """Columns upstream of a result that grow as well (``sign`` -1: shrink), the nearest first."""
    seen, waiting, found = {column}, [(column, 0)], []
    for here, depth in waiting:
        for parent in series.parents[here] if depth < hops else ():
            if parent not in seen:
                seen.add(parent)
                if sign * growth(series, parent) > 0.5:
                    found.append(parent)
                    waiting.append((parent, depth + 1))
    return found


ENLARGED = 1.5  # a constant factor from which on it is named
# bits between the largest and the smallest ratio of two results that bear a constant one
CONSTANT = 0.05
HOPS = 12  # operations upstream
_PRODUCTS = having("matmul", "dot", "composed_product")


def _named(recording: Recording, column: int) -> str:
    """A result by its operation and its place."""
    place = recording.training.series.places[column]
    return f"{place.op} ({location(*recording.places[place.line][:2])})"


def decay(recording: Recording, column: int) -> str:
    """From where the decay comes."""
    series = recording.training.series
    origins = growing_origins(series, column, sign=-1.0)
    if not origins:
        return ""
    smaller = 2 ** -growth(series, origins[-1])
    return (
        f"It begins at {_named(recording, origins[-1])}, {smaller:.3g} times smaller than at first."
    )


def story(recording: Recording, column: int) -> str:
    """What growth comes from: growing results upstream, a product, a constant factor."""
    series = recording.training.series
    told = []
    product = product_of_growing(recording, column)
    weights = growing_weights(recording, column)
    factor = constant_factor(series, column)
    origins = [c for c in growing_origins(series, column) if series.places[c].phase != BACKWARD]
    if product is not None:
        told.append(
            f"the product {_named(recording, product)} multiplies vectors whose norms grow, for"
            " nothing normalises them"
        )
    elif weights is not None:
        name, times = weights
        told.append(
            f"the parameters behind it grow: {name} is {times:.3g} times larger than at first"
        )
    if factor is not None:
        told.append(
            f"the constant factor of {_named(recording, factor[0])} makes it {factor[1]:.3g} times"
            " larger still"
        )
    if origins:
        times = 2 ** growth(series, origins[-1])
        told.append(
            f"the growth begins at {_named(recording, origins[-1])}, {times:.3g} times larger than"
            " at first"
        )
    text = "; ".join(told)
    return f"{text[:1].upper()}{text[1:]}." if text else ""


def product_of_growing(recording: Recording, column: int) -> int | None:
    """The product of growing vectors, not of weights, that a result comes from."""
    series = recording.training.series
    for at in (column, *growing_origins(series, column, hops=4)):
        if series.places[at].op in _PRODUCTS and any(
            growth(series, p) > 0.5 for p in series.parents[at]
        ):
            return None if _own_parameters(recording, at) else at
    return None


def _own_parameters(recording: Recording, column: int) -> list[str]:
    """The parameters of the module in which an operation ran."""
    module = recording.modules.items[recording.training.series.places[column].module]
    names = recording.parameter_names
    return [name for name in names if module and name.rpartition(".")[0] == module]


def growing_weights(recording: Recording, column: int) -> tuple[str, float] | None:
    """(name, factor) of the parameter that grew most in modules of a growing result."""
    series = recording.training.series
    found = {
        n
        for at in (column, *growing_origins(series, column))
        for n in _own_parameters(recording, at)
    }
    grown = [
        (growth(series, at), recording.parameter_names[owner])
        for at, owner in series.owners.items()
        if at >= 0
    ]
    most = max((g for g in grown if g[1] in found and g[0] > 0.5), default=None)
    return None if most is None else (most[1], 2.0 ** most[0])


def constant_factor(series: Series, column: int) -> tuple[int, float] | None:
    """(column, factor) of the constant upstream that enlarges a result most, if any."""
    seen, waiting, best = {column}, [(column, 0)], (-1, math.log2(ENLARGED))
    for at, depth in waiting:
        if series.places[at].op in ("div", "mul") and len(series.parents[at]) == 1:
            after, before = series.table[:, at], series.table[:, series.parents[at][0]]
            both = np.isfinite(after) & np.isfinite(before)
            change = after[both] - before[both]
            if (
                len(change)
                and np.ptp(change) < CONSTANT
                and (bits := float(np.median(change))) > best[1]
            ):
                best = at, bits
        waiting += [(p, depth + 1) for p in series.parents[at] if depth < HOPS and p not in seen]
        seen.update(series.parents[at])
    return None if best[0] < 0 else (best[0], 2.0 ** best[1])


MOST_TOLD = 3
LARGE_FACTOR = 16.0  # and from which on it should be divided out
GROWN = 2.0  # bits by which a result must have grown for its growth to be the cause of its overflow
_TITLE = (
    "what is carried from step to step is multiplied by more than one: a factor of at most one, or"
    " a bound"
)
_OF_STATE = Fix(_TITLE, "state = state.clamp(-1e4, 1e4)")
_SCALES = having("grows")


@rule(
    "warning",
    family="context",
    events=("training.series.may_tell",),
    example="""
        w = nn.Parameter(torch.ones(4))
        for i in range(12):
            w.grad = None
            wide = 0.1 * w * 3.0**i
            half = wide.half()  # here
            half.float().mean().backward()
    """,
    fix={"wide.half()": "F.normalize(wide, dim=0).half()"},
)
def dtype_overflow_(trace: Trace) -> Iterator[Finding]:
    """A result grows step after step towards the largest number of its dtype; beyond it comes inf,
    and then NaN."""
    yield from _told(trace.recording, "overflow")


@rule(
    "warning",
    family="context",
    events=("training.series.may_tell",),
    example="""
        w = nn.Parameter(torch.ones(4))
        for i in range(12):
            w.grad = None
            wide = 1e-4 * w * 0.5**i
            half = wide.half()  # here
            half.float().mean().backward()
    """,
    fix={"wide.half()": "wide.bfloat16()"},
)
def dtype_underflow_(trace: Trace) -> Iterator[Finding]:
    """A result shrinks step after step towards the smallest number of its dtype; below it all its
    values become zero."""
    yield from _told(trace.recording, "underflow")


def _told(recording: Recording, end: End) -> Iterator[Finding]:
    """A warning for each of the first few lines on the way to an end of their dtype."""
    lines: set[Any] = set()
    for forecast in forecasts(recording):
        line = recording.places[forecast.place.line][:2]
        if forecast.end == end and line not in lines and len(lines) < MOST_TOLD:
            lines.add(line)
            yield _warning(recording, forecast)


def _warning(recording: Recording, forecast: Forecast) -> Finding:
    series = recording.training.series
    place = where(recording, forecast.place)
    overflow = forecast.end == "overflow"
    owner = series.owners.get(forecast.column)
    backward = "gradient" if forecast.place.phase == BACKWARD else "result"
    if owner is not None:
        name = f"{recording.parameter_kinds[owner]} {recording.parameter_names[owner]}"
    else:
        name = f"the {backward} of {place['op']}"
    way = f"on its way {'out of' if overflow else 'to zero in'} {forecast.place.dtype}"
    end = "it overflows" if overflow else "all of it is zero"
    title = (
        f"{name} is {way}: {2**forecast.value:.3g} at step {forecast.step}, {pace(forecast.slope)};"
        f" {end} {until(forecast)}"
    )
    if forecast.reached is not None:
        over = f" It {'did' if overflow else 'was'} at step {forecast.reached}."
    else:
        over = ""
    rule_text = (dtype_overflow_ if overflow else dtype_underflow_).explanation
    story_text = (
        story(recording, forecast.column) if overflow else decay(recording, forecast.column)
    )
    return Finding(
        cause="dtype-overflow" if overflow else "dtype-underflow",
        severity="warning",
        title=title,
        explanation=f"{rule_text}{over} {story_text}".strip(),
        step=forecast.step,
        symptom=f"trend-{forecast.end}",
        fixes=_fixes(recording, forecast.column) if overflow else _lifts(recording, forecast),
        **place,
    )


def until(forecast: Forecast) -> str:
    """When it gets there, in words: "in the next step", "in about 7 steps (5 to 12)"."""
    steps, low, high = (max(1, round(min(s, 1e6))) for s in (forecast.steps, *forecast.interval))
    if high == 1:
        return "in the next step"
    if low == high:
        return f"in about {steps} steps"
    return f"in about {plural(steps, 'step')} ({low} to {high if high < 1000 else 'many'})"


def pace(slope: float) -> str:
    """The factor by which something changes in each step."""
    factor = 2.0**slope
    if 0.01 <= factor < 1000:
        shown = f"{factor:.3g}"
    else:
        shown = f"{factor:.1e}".replace("e+0", "e").replace("e-0", "e-")
    return f"{shown} times as large each step"


def _lifts(recording: Recording, forecast: Forecast) -> list[Fix]:
    """What keeps a shrinking result or gradient from zero."""
    fixes = [scaled_loss(recording)] if forecast.place.phase == BACKWARD else []
    if not _is_narrow(forecast.place.dtype):
        return [fix for fix in fixes if forecast.place.dtype == "float16"]
    return [
        *fixes,
        Fix("a dtype with float32's range", "torch.bfloat16"),
        Fix("compute this in float32", "x.float()"),
    ]


def _is_narrow(dtype: str) -> bool:
    """Whether float32 reaches further than a dtype: float16 and float8, not bfloat16."""
    return format_of(getattr(torch, dtype)).max < format_of(torch.float32).max / 2


def _fixes(recording: Recording, column: int) -> list[Fix]:
    series, fixes = recording.training.series, []
    factor, narrow = constant_factor(series, column), _is_narrow(series.places[column].dtype)
    if product_of_growing(recording, column) is not None:
        fixes.append(
            Fix(
                "normalise the vectors before the product",
                "x = torch.nn.functional.normalize(x, dim=-1)",
            )
        )
    elif not narrow and growing_weights(recording, column) is not None:
        code = 'for group in optimizer.param_groups:\n    group["lr"] /= 10'
        fixes.append(Fix("a smaller learning rate: the parameters grow from step to step", code))
    if narrow and factor is not None and factor[1] >= LARGE_FACTOR:
        title = (
            f"divide the factor of {factor[1]:.3g} out before this operation, and multiply by it"
            " afterwards, in float32"
        )
        fixes.append(Fix(title, f"x = x / {factor[1]:.6g}"))
    if narrow:
        fixes.append(
            Fix(
                "compute this in float32",
                "x.float()  # inside torch.autocast(device_type, enabled=False)",
            )
        )
    return fixes


@rule(
    "error",
    family="context",
    more_specific_than=("context",),
    origins=("operation",),
    phase="forward",
    example="""
        w = nn.Parameter(torch.ones(4, 4))
        for i in range(12):
            w.grad = None
            a = (w * 2.0**i).half()
            scores = a @ a.T  # here
            scores.float().softmax(1).sum().backward()
    """,
    fix={"(w * 2.0**i).half()": "F.normalize(w * 2.0**i, dim=-1).half()"},
)
def dtype_overflow(fault: Fault) -> Finding | None:
    """A result grew from step to step until it left the range of its dtype."""
    if fault.name not in _SCALES:
        return None
    series, column = fault.recording.training.series, _column(fault)
    if column is None or growth(series, column) < GROWN:
        return None
    if not fault.low and (
        fault.name in ("div", "pow") or not carried(fault.recording, fault.position)
    ):
        return None
    values = series.table[
        : int(np.searchsorted(series.steps, fault.position, side="right")), column
    ]
    finite = values[np.isfinite(values)]
    if not len(finite) or finite[-1] - finite[0] < GROWN / 2:  # it came all at once
        return None
    title = (
        f"{fault.name} overflows {fault.dtype}: its largest value grew from {2 ** finite[0]:.3g} to"
        f" {2 ** finite[-1]:.3g} in {plural(len(finite), 'step')}, then to inf"
    )
    return replace(
        fault.finding,
        cause="dtype-overflow",
        title=title,
        explanation=f"{dtype_overflow.explanation} {story(fault.recording, column)}".strip(),
        fixes=_fixes(fault.recording, column) if fault.low else [_OF_STATE],
    )


def _column(fault: Fault) -> int | None:
    """The series of the result that failed."""
    series = fault.recording.training.series
    for column, place in enumerate(series.places):
        if (
            place.op == fault.row.name
            and place.line == fault.row.place
            and np.isposinf(series.table[:, column]).any()
        ):
            return column
    return None
