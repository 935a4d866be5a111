"""Forecasts: results on their way to overflow, or to zero, and the steps that are left."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cache
from typing import Literal

import numpy as np
import numpy.typing as npt
import torch

from nanlab.formats import format_of
from nanlab.operators import having
from nanlab.trace.history import FEWEST_STEPS, Place, Series
from nanlab.trace.op import BACKWARD
from nanlab.trace.recording import Recording

Array = npt.NDArray[np.float64]
End = Literal["overflow", "underflow"]
WINDOW = 24  # steps that a fit looks back over
NEAR = 8.0  # bits to the limit of a narrow dtype within which growth matters
FAST_NEAR, SOON = 14.0, 8.0  # the same for growth certain to arrive within so many steps
LARGE = 20.0  # log2 of the magnitude from which on growth matters in a dtype of float32's range
CLIMBED = 3.0  # bits a result must have climbed within the window
CLIMBED_FAR = 10.0  # the same in a dtype of float32's range
NEAR_STEADY = 21.0  # bits to the limit within which shapes other than the exponential are fitted
FEWEST_STEADY = 8  # steps that such a fit needs
WINDOWS_STEADY = 24, 48, 192  # steps that it looks back over; the longer ones for noisy courses
CLIMBED_STEADY = 0.3  # bits a result must have climbed for it
CLEAR = 8.0  # standard errors by which it must climb
SURE = 3.0  # standard errors by which an earlier forecast may fail: each passes several tests
FELL = 2.0  # bits of a fall that is a reset rather than noise
SOON_STEADY = 15.0  # steps within which it must arrive
REACH = 0.5  # steps to look ahead, as a share of those the shape was seen in
EXPLAINED = 0.95  # share of the course, noise aside, that the shape must explain
RESTED = 0.85  # recent over whole pace, below which a result levels off
FARTHEST = 48.0  # steps ahead at most
LOOKS = 3  # steps in a row in which the end must be foreseen
HOPS = 12  # operations upstream that are looked through
# bits between the largest and the smallest ratio of two results that bear a constant one
CONSTANT = 0.05
DOUBT = 2.0  # standard errors on either side of the slope: an interval of about 95 %


@dataclass(frozen=True, slots=True)
class Forecast:
    """A result on its way out of its dtype's range, as seen at the end of one step."""

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


@cache
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
    return np.array([_limit(place.dtype, end) for place in series.places])


def towards(series: Series, end: End) -> Array:
    """A series' table with its end at +inf: underflow's logarithms are negated."""
    table = series.table.astype(np.float64)
    return table if end == "overflow" else -table


def exponential(values: Array, limit: float) -> tuple[float, float, float, float] | None:
    """(slope, steps left, least, most) of a result that climbs towards a limit; else None.

    values: log2 of the magnitude by step, NaN where unseen. A least-squares line through them; the
    interval is two standard errors of the slope wide on either side.
    """
    at = np.flatnonzero(np.isfinite(values))
    if len(at) < FEWEST_STEPS:
        return None
    x, y = at.astype(np.float64), values[at]
    slope, error, residual = _line(x, y)
    if slope <= DOUBT * error or _rests(x, y, slope):
        return None
    return _arrival(slope, limit - float(y[-1] - min(residual[-1], 0)), slope, error)


def _rests(x: Array, y: Array, slope: float) -> bool:
    """Whether the later half of a course climbs more slowly than all of it."""
    late, doubt = _late(x, y)
    return late + DOUBT * doubt < RESTED * slope


def _quickens(x: Array, y: Array) -> bool:
    """Whether a course is seen to climb faster in its later half than in all of it."""
    late, doubt = _late(x, y)
    return late - doubt > _line(x, y)[0]


def _late(x: Array, y: Array) -> tuple[float, float]:
    """The slope of the later half of a course, and its standard error."""
    return _line(x[-(len(x) // 2) :], y[-(len(x) // 2) :])[:2]


def _line(x: Array, y: Array) -> tuple[float, float, Array]:
    """The slope of a straight line, its standard error, and what the line leaves."""
    centred, spread = x - x.mean(), y - y.mean()
    squares = float(centred @ centred)
    slope = float(centred @ spread) / squares
    residual = spread - slope * centred
    return slope, math.sqrt(float(residual @ residual) / max(len(x) - 2, 1) / squares), residual


def _arrival(
    pace: float, distance: float, slope: float, error: float
) -> tuple[float, float, float, float]:
    """(pace, steps left, least, most) of a line that is ``distance`` from its end."""
    left = max(distance, 0.0) / slope
    low, high = (max(distance, 0.0) / (slope + sign * DOUBT * error) for sign in (1, -1))
    return pace, left, low, high


def steady(values: Array, limit: float) -> tuple[float, float, float, float] | None:
    """``exponential`` for other shapes too: running sums, norms, annealed widths, under noise.

    Each shape is a line in its own coordinates: the logarithm, the magnitude, its square root, the
    logarithm of the logarithm. It counts if forecasts by it came true on the course so far; the
    one that foresaw best wins.
    """
    at = np.flatnonzero(np.isfinite(values))
    x, y = at.astype(np.float64), values[at]
    if len(at) < FEWEST_STEADY or y[-1] - y[0] < min(CLIMBED_STEADY, 2 * (limit - y[-1])):
        return None
    below = y - limit
    shapes = [(below, 0.0), (np.exp2(below), 1.0), (np.exp2(below / 2), 1.0)]
    if y.min() > 1.0 and y[-1] - y[0] >= CLIMBED and _quickens(x, y):
        shapes.append((np.log2(y), math.log2(limit)))
    best, least = None, math.inf
    for z, end in shapes:
        slope, error, residual = _line(x, z)
        if slope <= CLEAR * error or _rests(x, z, slope):
            continue
        # what is noisy gets there with the highest of its values
        highest = max(float(residual[-len(x) // 2 :].max()), 0.0)
        distance = end - float(z[-1] - residual[-1] + highest)
        noise = float(np.square(np.diff(residual)).mean()) / 2
        left_over = float(residual @ residual) / len(x) - noise
        if distance / slope > REACH * float(x[-1] - x[0]) or left_over > (1 - EXPLAINED) * (
            float(z.var()) - noise
        ):
            continue
        missed = _missed(x, z, math.ceil(max(distance, 0.0) / slope), noise)
        if missed is not None and missed < least:
            pace = _line(x[-FEWEST_STEADY:], y[-FEWEST_STEADY:])[0]  # as it was seen
            best, least = _arrival(pace, distance, slope, error), missed
    return best


def _missed(x: Array, z: Array, ahead: int, noise: float) -> float | None:
    """How far, as a share of the course, a line was off ``ahead`` steps ago; None: it fell short.

    The forecasts are tried that were made so many steps ago, half the course ago, and just now.
    noise: variance of the values around the course.
    """
    half, just = len(x) // 2, FEWEST_STEADY // 2
    ahead, share = min(max(ahead, just), half), 0.0
    for since in {ahead, half, just}:
        old = len(x) - since
        slope, _, _ = _line(x[:old], z[:old])
        centre, spread = x[:old].mean(), float(x[:old].var()) * old
        told = z[:old].mean() + slope * (x[old:] - centre)
        far = float(x[old:].mean() - centre)
        doubt = SURE * math.sqrt(noise * (far * far / spread + 1 / since + 1 / old))
        if slope <= 0 or float(z[old:].mean() - told.mean()) < -doubt:
            return None
        if since == ahead:
            share = float(np.square(z[old:] - told).sum() / (float(z.var()) * len(z)))
    return share


def outlook(values: Array, limit: float, wide: bool) -> tuple[float, float, float, float] | None:
    """The fit over the last steps, if near and certain enough to report."""
    recent = values[-WINDOW:]
    known = recent[np.isfinite(recent)]
    if len(known) < FEWEST_STEPS or known[-1] != recent[-1] or _came_back(values):
        return None
    distance = limit - float(known[-1])
    if not wide and distance <= NEAR_STEADY:
        for found in (steady(values[-window:], limit) for window in WINDOWS_STEADY):
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
    """Whether it was as large before this climb: a sum that is reset, a cycle."""
    known = values[np.isfinite(values)]
    began = len(known) - 1 - int(np.argmin(known[-WINDOW:][::-1]))
    before = float(known[:began].max()) if began else -math.inf
    return before >= float(known[-1]) and before - float(known[began]) >= FELL


def candidates(recording: Recording, end: End = "overflow") -> Iterator[tuple[int, float, bool]]:
    """(column, limit, whether it has float32's range) of results near enough to a limit.

    In dtypes of float32's range underflow is forecast of what something is divided by, or a
    logarithm taken of. Gradients under a loss scaler are left to it.
    """
    series = recording.training.series
    if not len(series):
        return
    table, limits = towards(series, end), limits_of(series, end)
    finite = np.isfinite(table)
    highest = np.max(table, axis=0, initial=-np.inf, where=finite)
    lowest = np.min(table, axis=0, initial=np.inf, where=finite)
    wide = limits > 64
    near = np.where(wide, LARGE, limits - FAST_NEAR)
    if end == "underflow":
        falls = np.array([c in series.divisors for c in range(len(limits))], dtype=bool)
        falls &= highest >= near
        near[wide & ~_behind(series, np.flatnonzero(falls & wide))] = np.inf
    scaled = bool(recording.training.unscales)
    for column in np.flatnonzero((highest >= near) & (highest > lowest)).tolist():
        left_to_scaler = scaled and series.places[column].phase == BACKWARD
        if not left_to_scaler and not _is_bounded(recording, column, float(limits[column])):
            yield column, float(limits[column]), bool(wide[column])


def _behind(series: Series, columns: npt.NDArray[np.intp]) -> npt.NDArray[np.bool_]:
    """Which results are among these, or what they were computed of."""
    found = np.zeros(len(series.places), dtype=bool)
    found[columns] = True
    for _ in range(HOPS):
        parents = [p for c in np.flatnonzero(found).tolist() for p in series.parents[c]]
        found[parents] = True
    return found


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
    """The bounds of the last call of a clamp."""
    for segment in reversed(recording.program.segments):
        for call in segment.calls:
            op = recording.op(call.position)
            if op is not None and op.place == place.line and op.name == place.op:
                return [float(n) for n in call.args[1:] if isinstance(n, int | float)]
    return []


def forecasts(recording: Recording) -> list[Forecast]:
    """Results on their way out of range, the earliest warning first.

    For a result that got there, the first step at whose end that could be foreseen; for others, the
    last step.
    """
    found = [*_forecasts(recording, "overflow"), *_forecasts(recording, "underflow")]

    def when(f: Forecast) -> tuple[bool, float, int]:
        """Of what reached its end in one step, the others followed from the first operation."""
        reached = f.reached
        return reached is None, f.steps if reached is None else reached, f.place.position

    return sorted(found, key=when)


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
            at, (slope, left, *interval) = told
            over = int(steps[bad[0]]) if len(bad) else None
            numbers = (sign * limit, sign * float(values[at]), sign * slope, left)
            place, step = series.places[column], int(steps[at])
            told_of = Forecast(column, place, end, step, *numbers, (interval[0], interval[1]), over)
            yield told_of if over is not None else _nearest(series, told_of)


def _nearest(series: Series, forecast: Forecast) -> Forecast:
    """The forecast of what is the result times a constant, where that is nearer to its limit: it
    shares the course, though a fit to it alone may not be certain yet."""
    table, limits = towards(series, forecast.end), limits_of(series, forecast.end)
    column, sign = forecast.column, 1.0 if forecast.end == "overflow" else -1.0
    whole = left = sign * (forecast.limit - forecast.value)
    for _ in range(HOPS):
        for at, parents in enumerate(series.parents):
            distance = float(limits[at] - table[-1, at])
            if parents != (column,) or not 0 <= distance < left:
                continue
            both = np.isfinite(table[:, [at, column]]).all(1)
            change = table[both, at] - table[both, column]
            if len(change) >= FEWEST_STEPS and np.ptp(change) < CONSTANT:
                column, left = at, distance
                break
        else:
            break
    if column == forecast.column:
        return forecast
    share, value = left / whole, float(table[-1, column])
    low, high = forecast.interval
    return replace(
        forecast,
        column=column,
        place=series.places[column],
        limit=sign * float(limits[column]),
        value=sign * value,
        steps=forecast.steps * share,
        interval=(low * share, high * share),
    )


def _rows_before_poison(recording: Recording) -> int:
    """Steps of the series up to the first harm; later growth is a consequence."""
    series = recording.training.series
    if not recording.sinks or recording.training.unscales:
        return len(series)
    return int(np.searchsorted(series.steps, recording.sinks[0].step_position, side="right")) + 1


def first_told(
    values: Array, limit: float, wide: bool, still: bool = False
) -> tuple[int, tuple[float, float, float, float]] | None:
    """(row, fit) of the first step to warn at; ``still``: only the last step counts.

    The end must be foreseen in each of the last LOOKS steps, and not recede over them, as it does
    when a climb slows down.
    """
    looks: list[tuple[float, float, float, float]] = []
    start = len(values) - LOOKS if still else 0
    for at in range(max(start, FEWEST_STEPS - 1), len(values)):
        seen = outlook(values[: at + 1], limit, wide)
        looks = [] if seen is None else [*looks, seen][-LOOKS:]
        if len(looks) == LOOKS and looks[-1][1] <= looks[0][1]:
            return at, looks[-1]
    return None
