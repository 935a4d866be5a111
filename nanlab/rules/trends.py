"""Results that grow step after step until their dtype cannot hold them: told before they overflow, and explained when they have."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from nanlab.analysis.training import place_text, where
from nanlab.analysis.trends import Forecast, forecasts, growing_origins, growth
from nanlab.history import Series
from nanlab.rules._fault import Fault
from nanlab.rules._rule import CONTEXT, Finding, Fix, rule
from nanlab.trace import Trace
from nanlab.trace.recording import BACKWARD, LINE, OP, Recording

MOST_TOLD = 3
GROWN = 2.0  # bits by which a result must have grown for its growth to be the cause of its overflow
_PRODUCTS = frozenset("mm bmm baddbmm addmm matmul einsum dot".split())
_SCALES = frozenset(
    "mm bmm baddbmm addmm matmul dot mul div sum pow square _to_copy linalg_vector_norm _cdist_forward sub add".split()
)


@rule(
    "warning",
    precedence=CONTEXT,
    example="""
        w = nn.Parameter(torch.ones(4))
        for i in range(12):
            wide = 0.1 * w * 3.0**i
            half = wide.half()  # here
            half.float().mean().backward()
    """,
    fix="""
        w = nn.Parameter(torch.ones(4))
        for i in range(12):
            wide = 0.1 * w * 3.0**i
            half = F.normalize(wide, dim=0).half()
            half.float().mean().backward()
    """,
)
def dtype_overflow_(trace: Trace) -> Iterator[Finding]:
    """A result grows step after step towards the largest number of its dtype; beyond it comes inf, and then NaN."""
    recording = trace.recording
    lines: set[int] = set()
    for forecast in forecasts(recording):
        if forecast.place.line not in lines and len(lines) < MOST_TOLD:
            lines.add(forecast.place.line)
            yield _warning(recording, forecast)


def _warning(recording: Recording, forecast: Forecast) -> Finding:
    series, place = recording.training.series, where(recording, forecast.place)
    owner = series.owners.get(forecast.column)
    name = f"parameter {recording.parameter_names[owner]}" if owner is not None else f"the result of {place['op']}"
    low, high = forecast.interval
    until = f"in about {forecast.steps:.0f} steps ({low:.0f} to {f'{high:.0f}' if high < 1000 else 'many'})"
    title = (
        f"{name} is on its way out of {forecast.place.dtype}: {2**forecast.value:.3g} at step {forecast.step}, "
        f"{2**forecast.slope:.2f} times as large each step; it overflows {until}"
    )
    over = f" It did at step {forecast.overflowed}." if forecast.overflowed is not None else ""
    return Finding(
        cause="dtype-overflow",
        severity="warning",
        title=title,
        explanation=f"{dtype_overflow_.explanation}{over} {story(recording, forecast.column)}".strip(),
        step=forecast.step,
        symptom="trend-overflow",
        fixes=_fixes(recording, forecast.column),
        **place,
    )


def story(recording: Recording, column: int) -> str:
    """From where the growth comes: the results upstream that grow as well, an unnormalised product, a temperature."""
    series = recording.training.series
    told = []
    product, scale = _product(series, column), _temperature(series, column)
    origins = [c for c in growing_origins(series, column) if series.places[c].phase != BACKWARD]
    if product is not None:
        file, line, _ = place_text(recording, series.places[product].line)
        told.append(
            f"{series.places[product].op} ({file}:{line}) multiplies vectors whose norms grow, for nothing normalises them"
        )
    if scale > 1.5:
        told.append(f"a division by a temperature of about {1 / scale:.3g} makes it {scale:.3g} times larger still")
    if origins:
        far = origins[-1]
        file, line, _ = place_text(recording, series.places[far].line)
        told.append(
            f"the growth begins at {series.places[far].op} ({file}:{line}), {2 ** growth(series, far):.3g} times larger than at first"
        )
    return ("; ".join(told) + ".").capitalize() if told else ""


def _product(series: Series, column: int) -> int | None:
    """The product of growing vectors that a result comes from, itself included."""
    for at in (column, *growing_origins(series, column, hops=4)):
        if series.places[at].op in _PRODUCTS and series.parents[at]:
            if any(growth(series, p) > 0.5 for p in series.parents[at]):
                return at
    return None


def _temperature(series: Series, column: int) -> float:
    """By how much a division or multiplication by a constant enlarges a result; 1 if none does."""
    for at in (column, *growing_origins(series, column, hops=3)):
        if series.places[at].op in ("div", "mul") and len(series.parents[at]) == 1:
            after, before = series.table[:, at], series.table[:, series.parents[at][0]]
            both = np.isfinite(after) & np.isfinite(before)
            known = after[both] - before[both]
            if len(known):
                return float(2.0 ** np.median(known))
    return 1.0


def _fixes(recording: Recording, column: int) -> list[Fix]:
    fixes = []
    if _product(recording.training.series, column) is not None:
        fixes.append(Fix("normalise the vectors before the product", "x = torch.nn.functional.normalize(x, dim=-1)"))
    fixes.append(Fix("compute this in float32", "x.float()  # inside torch.autocast(device_type, enabled=False)"))
    return fixes


@rule(
    "error",
    precedence=CONTEXT + 5,
    example="""
        w = nn.Parameter(torch.ones(4, 4))
        for i in range(12):
            a = (w * 2.0**i).half()
            scores = a @ a.T  # here
            scores.float().softmax(1).sum().backward()
    """,
    fix="""
        w = nn.Parameter(torch.ones(4, 4))
        for i in range(12):
            a = F.normalize(w * 2.0**i, dim=-1).half()
            scores = a @ a.T
            scores.float().softmax(1).sum().backward()
    """,
)
def dtype_overflow(fault: Fault) -> Finding | None:
    """A result grew from step to step until it left the range of its dtype; the wider float32 would have held it longer."""
    if fault.row is None or fault.kind != "operation" or not fault.low or fault.backward or fault.name not in _SCALES:
        return None
    series = fault.recording.training.series
    column = _column(fault, series)
    if column is None or growth(series, column) < GROWN:
        return None
    values = series.table[:, column]
    finite = values[np.isfinite(values)]
    title = f"{fault.name} overflows {fault.dtype}: its largest value grew from {2 ** finite[0]:.3g} to {2 ** finite[-1]:.3g} in {len(finite)} steps, then to inf"
    return replace(
        fault.finding,
        cause="dtype-overflow",
        title=title,
        explanation=f"{dtype_overflow.explanation} {story(fault.recording, column)}".strip(),
        fixes=_fixes(fault.recording, column),
    )


def _column(fault: Fault, series: Series) -> int | None:
    """The series of the result that failed."""
    if fault.row is None:
        return None
    op = fault.recording.ops.items[fault.row[OP]]
    for column, place in enumerate(series.places):
        if place.op == op and place.line == fault.row[LINE] and np.isposinf(series.table[:, column]).any():
            return column
    return None


RULES = (dtype_overflow_, dtype_overflow)
