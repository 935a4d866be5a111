"""Results that grow or shrink step after step until their dtype cannot hold them: told before, and explained after."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from nanlab.analysis.training import where
from nanlab.analysis.trends import End, Forecast, carried, forecasts, growth
from nanlab.formats import format_of
from nanlab.operators import having
from nanlab.rules._evidence import plural
from nanlab.rules._fault import Fault
from nanlab.rules._growth import constant_factor, decay, growing_weights, product_of_growing, story
from nanlab.rules._rule import Finding, Fix, rule
from nanlab.rules._scaler import scaled_loss
from nanlab.trace import Trace
from nanlab.trace.recording import BACKWARD, Recording

MOST_TOLD = 3
LARGE_FACTOR = 16.0  # and from which on it should be divided out
GROWN = 2.0  # bits by which a result must have grown for its growth to be the cause of its overflow
_TITLE = "what is carried from step to step is multiplied by more than one: a factor of at most one, or a bound"
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
    """A result grows step after step towards the largest number of its dtype; beyond it comes inf, and then NaN."""
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
    """A result shrinks step after step towards the smallest number of its dtype; below it all its values become zero."""
    yield from _told(trace.recording, "underflow")


def _told(recording: Recording, end: End) -> Iterator[Finding]:
    """A warning for each of the first few lines from which a result is on its way to an end of its dtype."""
    lines: set[Any] = set()
    for forecast in forecasts(recording):
        line = recording.places[forecast.place.line][:2]
        if forecast.end == end and line not in lines and len(lines) < MOST_TOLD:
            lines.add(line)
            yield _warning(recording, forecast)


def _warning(recording: Recording, forecast: Forecast) -> Finding:
    series, place, overflow = recording.training.series, where(recording, forecast.place), forecast.end == "overflow"
    owner = series.owners.get(forecast.column)
    backward = "gradient" if forecast.place.phase == BACKWARD else "result"
    name = f"parameter {recording.parameter_names[owner]}" if owner is not None else f"the {backward} of {place['op']}"
    way = f"on its way {'out of' if overflow else 'to zero in'} {forecast.place.dtype}"
    end = "it overflows" if overflow else "all of it is zero"
    title = f"{name} is {way}: {2**forecast.value:.3g} at step {forecast.step}, {pace(forecast.slope)}; {end} {until(forecast)}"
    over = f" It {'did' if overflow else 'was'} at step {forecast.reached}." if forecast.reached is not None else ""
    rule_text = (dtype_overflow_ if overflow else dtype_underflow_).explanation
    story_text = story(recording, forecast.column) if overflow else decay(recording, forecast.column)
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
    shown = f"{factor:.3g}" if 0.01 <= factor < 1000 else f"{factor:.1e}".replace("e+0", "e").replace("e-0", "e-")
    return f"{shown} times as large each step"


def _lifts(recording: Recording, forecast: Forecast) -> list[Fix]:
    """What keeps a shrinking result or gradient from zero."""
    fixes = [scaled_loss(recording)] if forecast.place.phase == BACKWARD else []
    if not _is_narrow(forecast.place.dtype):
        return [fix for fix in fixes if forecast.place.dtype == "float16"]
    return [*fixes, Fix("a dtype with float32's range", "torch.bfloat16"), Fix("compute this in float32", "x.float()")]


def _is_narrow(dtype: str) -> bool:
    """Whether float32 reaches further than a dtype: further than float16 and float8, not than bfloat16."""
    return format_of(getattr(torch, dtype)).max < format_of(torch.float32).max / 2


def _fixes(recording: Recording, column: int) -> list[Fix]:
    series, fixes = recording.training.series, []
    factor, narrow = constant_factor(series, column), _is_narrow(series.places[column].dtype)
    if product_of_growing(recording, column) is not None:
        fixes.append(Fix("normalise the vectors before the product", "x = torch.nn.functional.normalize(x, dim=-1)"))
    elif not narrow and growing_weights(recording, column) is not None:
        code = 'for group in optimizer.param_groups:\n    group["lr"] /= 10'
        fixes.append(Fix("a smaller learning rate: the parameters grow from step to step", code))
    if narrow and factor is not None and factor[1] >= LARGE_FACTOR:
        title = (
            f"divide the factor of {factor[1]:.3g} out before this operation, and multiply by it afterwards, in float32"
        )
        fixes.append(Fix(title, f"x = x / {factor[1]:.6g}"))
    if narrow:
        fixes.append(Fix("compute this in float32", "x.float()  # inside torch.autocast(device_type, enabled=False)"))
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
    if fault.row is None or fault.kind != "operation" or fault.backward or fault.name not in _SCALES:
        return None
    series, column = fault.recording.training.series, _column(fault)
    if column is None or growth(series, column) < GROWN:
        return None
    if not fault.low and (fault.name in ("div", "pow") or not carried(fault.recording, fault.position)):
        return None
    values = series.table[: int(np.searchsorted(series.steps, fault.position, side="right")), column]
    finite = values[np.isfinite(values)]
    if not len(finite) or finite[-1] - finite[0] < GROWN / 2:  # it came all at once
        return None
    title = f"{fault.name} overflows {fault.dtype}: its largest value grew from {2 ** finite[0]:.3g} to {2 ** finite[-1]:.3g} in {plural(len(finite), 'step')}, then to inf"
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
        if place.op == op and place.line == fault.row.place and np.isposinf(series.table[:, column]).any():
            return column
    return None
