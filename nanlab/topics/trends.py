"""Results that grow or shrink out of the range of their dtype: forecast and explanation."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd
import torch

from nanlab.analysis.training import where
from nanlab.findings.fault import Fault, owner_called, plural
from nanlab.findings.rule import Finding, Fix, rule
from nanlab.formats import format_of
from nanlab.operators import card, having
from nanlab.topics.flushes import FULL_RANGE, IN_FLOAT32
from nanlab.topics.forecast import CONSTANT, HOPS, LARGE, End, Forecast, forecasts
from nanlab.topics.scaler import scaled_loss
from nanlab.trace import Trace
from nanlab.trace.frames import StepRows
from nanlab.trace.history import FEWEST_STEPS, Series, place_at
from nanlab.trace.op import BACKWARD, FORWARD, OPTIMIZER, location, walk
from nanlab.trace.recording import Recording

# Magnitudes: one vector per training step, added when it ends.

_FACTOR = np.uint64(1_000_003)


def follow(rows: StepRows, written: list[tuple[int, int]]) -> None:
    """Add a step to the series. ``written``: (owner, position) of parameters and buffers."""
    series = rows.history.series
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
        parents = _parents(rows.recording, position, column_at)
        series.parents.append(tuple(dict.fromkeys(parents.values())))
        if place.phase == FORWARD and (slot := _pole(place.op)) in parents:
            series.divisors.add(parents[slot])
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


def _parents(recording: Recording, position: int, column_at: dict[int, int]) -> dict[int, int]:
    """Columns of a row's operands by their slots, views looked through."""
    sources = ((slot, recording.unviewed(s)) for s, slot in recording.own_operands(position))
    return {slot: column_at[s] for slot, s in sources if s in column_at}


_LOGARITHMS = having("log_like")


def _pole(name: str) -> int:
    """The slot of the operand whose zeros make an infinity or NaN; -1: none."""
    divisor = card(name).divisor
    return divisor if divisor is not None else 0 if name in _LOGARITHMS else -1


def growth(series: Series, column: int) -> float:
    """Bits by which a result climbed, from the first steps to the last finite ones."""
    values = series.table[:, column]
    known = values[np.isfinite(values)]
    if len(known) < FEWEST_STEPS:
        return 0.0
    ends = max(1, min(3, len(known) // 3))
    return float(np.median(known[-ends:]) - np.median(known[:ends]))


MOST_CARRIED = 256  # operations upstream that are searched for a hidden state


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

    def onward(at: int) -> list[int]:
        return [p for p in series.parents[at] if sign * growth(series, p) > 0.5]

    return list(walk([column], onward, depth=hops))[1:]


ENLARGED = 1.5  # a constant factor from which on it is named
_PRODUCTS = having("matmul", "dot", "composed_product")


def _named(recording: Recording, column: int) -> str:
    """A result by its operation and its place."""
    place = recording.training.series.places[column]
    return f"{place.op} ({location(*recording.places[place.line][:2])})"


def decay(recording: Recording, column: int) -> str:
    """A sentence on where a decay begins; "" if unknown."""
    series = recording.training.series
    origins = growing_origins(series, column, sign=-1.0)
    if not origins:
        return ""
    smaller = 2 ** -growth(series, origins[-1])
    return (
        f"The decay begins at {_named(recording, origins[-1])}, now {smaller:.3g} times smaller"
        " than at first."
    )


def story(recording: Recording, column: int) -> str:
    """Sentences on the source of growth: a product, parameters, a constant factor."""
    series = recording.training.series
    told = []
    product = product_of_growing(recording, column)
    weights = growing_weights(recording, column)
    factor = constant_factor(series, column)
    origins = [c for c in growing_origins(series, column) if series.places[c].phase != BACKWARD]
    if product is not None:
        told.append(
            f"the product {_named(recording, product)} multiplies vectors with growing norms, as"
            " nothing normalises them"
        )
    elif weights is not None:
        name, times = weights
        told.append(
            f"the parameters behind it grow: {name} is now {times:.3g} times larger than at first"
        )
    if factor is not None:
        told.append(
            f"the constant factor of {_named(recording, factor[0])} makes it another"
            f" {factor[1]:.3g} times larger"
        )
    if origins:
        times = 2 ** growth(series, origins[-1])
        told.append(
            f"the growth begins at {_named(recording, origins[-1])}, now {times:.3g} times larger"
            " than at first"
        )
    text = "; ".join(told)
    return f"{text[:1].upper()}{text[1:]}." if text else ""


def product_of_growing(recording: Recording, column: int) -> int | None:
    """The product of growing vectors (not weights) behind a result; None without one."""
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
    best = -1, math.log2(ENLARGED)
    for at in walk([column], series.parents.__getitem__, depth=HOPS):
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
    return None if best[0] < 0 else (best[0], 2.0 ** best[1])


MOST_TOLD = 3
LARGE_FACTOR = 16.0  # and from which on it should be divided out
GROWN = 2.0  # bits by which a result must have grown for its growth to be the cause of its overflow
_OF_STATE = Fix(
    "the state carried from step to step is multiplied by more than 1: limit the factor to 1, or"
    " bound the state",
    "state = state.clamp(-1e4, 1e4)",
)
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
    """A result grows step by step towards the largest number of its dtype; beyond that are inf and
    NaN."""
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
    """A result shrinks step by step towards the smallest number of its dtype; below that all its
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
        name = owner_called(recording.parameter_kinds[owner], recording.parameter_names[owner])
    else:
        name = f"the {backward} of {place['op']}"
    way = f"on its way {'out of' if overflow else 'to zero in'} {forecast.place.dtype}"
    end = "it overflows" if overflow else "it is all zero"
    title = (
        f"{name} is {way}: {2**forecast.value:.3g} at step {forecast.step}, {pace(forecast.slope)};"
        f" {end} {until(forecast)}"
    )
    reached = forecast.reached
    over = "" if reached is None else f"It {'did' if overflow else 'was'} at step {reached}."
    told = (story if overflow else decay)(recording, forecast.column)
    return (dtype_overflow_ if overflow else dtype_underflow_).finding(
        title,
        f"{over} {told}".strip(),
        step=forecast.step,
        symptom=f"trend-{forecast.end}",
        fixes=_fixes(recording, forecast.column) if overflow else _lifts(recording, forecast),
        **place,
    )


def until(forecast: Forecast) -> str:
    """The steps left, in words: "in the next step", "in about 7 steps (5 to 12)"."""
    steps, low, high = (max(1, round(min(s, 1e6))) for s in (forecast.steps, *forecast.interval))
    if high == 1:
        return "in the next step"
    if low == high:
        return f"in about {steps} steps"
    return f"in about {plural(steps, 'step')} ({low} to {high if high < 1000 else 'many'})"


def pace(slope: float) -> str:
    """The factor per step, in words."""
    factor = 2.0**slope
    if 0.01 <= factor < 1000:
        shown = f"{factor:.3g}"
    else:
        shown = f"{factor:.1e}".replace("e+0", "e").replace("e-0", "e-")
    return f"{shown} times as large each step"


def _lifts(recording: Recording, forecast: Forecast) -> list[Fix]:
    """Fixes that keep a shrinking result or gradient from zero."""
    fixes = [scaled_loss(recording)] if forecast.place.phase == BACKWARD else []
    if not _is_narrow(forecast.place.dtype):
        return [fix for fix in fixes if forecast.place.dtype == "float16"]
    return [*fixes, FULL_RANGE, IN_FLOAT32]


def _is_narrow(dtype: str) -> bool:
    """Whether float32 reaches further than a dtype: float16 and float8, not bfloat16."""
    return format_of(dtype).max < format_of(torch.float32).max / 2


def _fixes(recording: Recording, column: int) -> list[Fix]:
    series, fixes = recording.training.series, []
    factor, narrow = constant_factor(series, column), _is_narrow(series.places[column].dtype)
    if product_of_growing(recording, column) is not None:
        fixes.append(
            Fix(
                "normalise the factors",
                "vectors = torch.nn.functional.normalize(vectors, dim=-1)  # before the product",
            )
        )
    elif not narrow and growing_weights(recording, column) is not None:
        code = 'for group in optimizer.param_groups:\n    group["lr"] /= 10'
        fixes.append(
            Fix("use a smaller learning rate: the parameters grow from step to step", code)
        )
    if narrow and factor is not None and factor[1] >= LARGE_FACTOR:
        title = (
            f"divide by the factor of {factor[1]:.3g} before this operation, and multiply by it"
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
    """A result grew from step to step until it overflowed its dtype."""
    if fault.name not in _SCALES:
        return None
    series, column = fault.recording.training.series, _column(fault)
    if column is None or growth(series, column) < GROWN:
        return None
    if not fault.low and (
        fault.name in ("div", "pow") or not carried(fault.recording, fault.position)
    ):
        return None
    rows = int(np.searchsorted(series.steps, fault.position, side="right"))
    values = series.table[:rows, column]
    finite = values[np.isfinite(values)]
    if not len(finite) or finite[-1] - finite[0] < GROWN / 2:  # it came all at once
        return None
    title = (
        f"{fault.name} overflows {fault.dtype}: its largest value grew from {2 ** finite[0]:.3g} to"
        f" {2 ** finite[-1]:.3g} in {plural(len(finite), 'step')}, then to inf"
    )
    fixes = _fixes(fault.recording, column) if fault.low else [_OF_STATE]
    return dtype_overflow.retold(fault.finding, title, story(fault.recording, column), fixes=fixes)


def _column(fault: Fault) -> int | None:
    """The series of the result that failed."""
    series, failed = fault.recording.training.series, (fault.row.name, fault.row.place)
    same = (c for c, place in enumerate(series.places) if (place.op, place.line) == failed)
    return next((c for c in same if np.isposinf(series.table[:, c]).any()), None)
