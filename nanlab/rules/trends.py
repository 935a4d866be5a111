"""Results that grow or shrink step after step until their dtype cannot hold them: told before, and
explained after."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from nanlab.analysis.training import where
from nanlab.analysis.trends import End, Forecast, carried, forecasts, growing_origins, growth
from nanlab.formats import format_of
from nanlab.history import Series
from nanlab.operators import having
from nanlab.rules._evidence import plural
from nanlab.rules._fault import Fault
from nanlab.rules._rule import Finding, Fix, rule
from nanlab.rules.scaler import scaled_loss
from nanlab.trace import Trace
from nanlab.trace.locations import location
from nanlab.trace.recording import BACKWARD, Recording

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
    """From where the growth comes: the results upstream that grow as well, an unnormalised product,
    a constant factor."""
    series = recording.training.series
    told = []
    product, weights, factor = (
        product_of_growing(recording, column),
        growing_weights(recording, column),
        constant_factor(series, column),
    )
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
    """The product of growing vectors, not of a layer's weights, that a result comes from, itself
    included."""
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
    """(name, times by which it grew) of the parameter that grew most, of the modules that a growing
    result came through."""
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
    """(column, factor) of the multiplication or division by a constant upstream that enlarges a
    result most, if one does."""
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
    example="""
        w = nn.Parameter(torch.ones(4))
        for i in range(12):
            w.grad = None
            wide = 0.1 * w * 3.0**i
            half = wide.half()  # here
            half.float().mean().backward()
    """,
    fix="""
        w = nn.Parameter(torch.ones(4))
        for i in range(12):
            w.grad = None
            wide = 0.1 * w * 3.0**i
            half = F.normalize(wide, dim=0).half()
            half.float().mean().backward()
    """,
)
def dtype_overflow_(trace: Trace) -> Iterator[Finding]:
    """A result grows step after step towards the largest number of its dtype; beyond it comes inf,
    and then NaN."""
    yield from _told(trace.recording, "overflow")


@rule(
    "warning",
    family="context",
    example="""
        w = nn.Parameter(torch.ones(4))
        for i in range(12):
            w.grad = None
            wide = 1e-4 * w * 0.5**i
            half = wide.half()  # here
            half.float().mean().backward()
    """,
    fix="""
        w = nn.Parameter(torch.ones(4))
        for i in range(12):
            w.grad = None
            wide = 1e-4 * w * 0.5**i
            half = wide.bfloat16()
            half.float().mean().backward()
    """,
)
def dtype_underflow_(trace: Trace) -> Iterator[Finding]:
    """A result shrinks step after step towards the smallest number of its dtype; below it all its
    values become zero."""
    yield from _told(trace.recording, "underflow")


def _told(recording: Recording, end: End) -> Iterator[Finding]:
    """A warning for each of the first few lines from which a result is on its way to an end of its
    dtype."""
    lines: set[Any] = set()
    for forecast in forecasts(recording):
        line = recording.places[forecast.place.line][:2]
        if forecast.end == end and line not in lines and len(lines) < MOST_TOLD:
            lines.add(line)
            yield _warning(recording, forecast)


def _warning(recording: Recording, forecast: Forecast) -> Finding:
    series, place, overflow = (
        recording.training.series,
        where(recording, forecast.place),
        forecast.end == "overflow",
    )
    owner = series.owners.get(forecast.column)
    backward = "gradient" if forecast.place.phase == BACKWARD else "result"
    name = (
        f"parameter {recording.parameter_names[owner]}"
        if owner is not None
        else f"the {backward} of {place['op']}"
    )
    way = f"on its way {'out of' if overflow else 'to zero in'} {forecast.place.dtype}"
    end = "it overflows" if overflow else "all of it is zero"
    title = (
        f"{name} is {way}: {2**forecast.value:.3g} at step {forecast.step}, {pace(forecast.slope)};"
        f" {end} {until(forecast)}"
    )
    over = (
        f" It {'did' if overflow else 'was'} at step {forecast.reached}."
        if forecast.reached is not None
        else ""
    )
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
    shown = (
        f"{factor:.3g}"
        if 0.01 <= factor < 1000
        else f"{factor:.1e}".replace("e+0", "e").replace("e-0", "e-")
    )
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
    """Whether float32 reaches further than a dtype: further than float16 and float8, not than
    bfloat16."""
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
    example="""
        w = nn.Parameter(torch.ones(4, 4))
        for i in range(12):
            w.grad = None
            a = (w * 2.0**i).half()
            scores = a @ a.T  # here
            scores.float().softmax(1).sum().backward()
    """,
    fix="""
        w = nn.Parameter(torch.ones(4, 4))
        for i in range(12):
            w.grad = None
            a = F.normalize(w * 2.0**i, dim=-1).half()
            scores = a @ a.T
            scores.float().softmax(1).sum().backward()
    """,
)
def dtype_overflow(fault: Fault) -> Finding | None:
    """A result grew from step to step until it left the range of its dtype."""
    if (
        fault.row is None
        or fault.kind != "operation"
        or fault.backward
        or fault.name not in _SCALES
    ):
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
    if fault.row is None:
        return None
    series = fault.recording.training.series
    op = fault.row.name
    for column, place in enumerate(series.places):
        if (
            place.op == op
            and place.line == fault.row.place
            and np.isposinf(series.table[:, column]).any()
        ):
            return column
    return None
