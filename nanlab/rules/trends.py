"""Results that grow or shrink step after step until their dtype cannot hold them: told before they do, and explained when they have."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from nanlab.analysis.training import place_text, where
from nanlab.analysis.trends import End, Forecast, forecasts, growing_origins, growth
from nanlab.history import Series
from nanlab.rules._evidence import plural
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
    precedence=CONTEXT,
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
    lines: set[int] = set()
    for forecast in forecasts(recording):
        if forecast.end == end and forecast.place.line not in lines and len(lines) < MOST_TOLD:
            lines.add(forecast.place.line)
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
    story_text = story(recording, forecast.column) if overflow else _shrinking(recording, forecast.column)
    return Finding(
        cause="dtype-overflow" if overflow else "dtype-underflow",
        severity="warning",
        title=title,
        explanation=f"{rule_text}{over} {story_text}".strip(),
        step=forecast.step,
        symptom=f"trend-{forecast.end}",
        fixes=_fixes(recording, forecast.column) if overflow else _lifts(forecast),
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


def _shrinking(recording: Recording, column: int) -> str:
    """From where the decay comes."""
    series = recording.training.series
    origins = growing_origins(series, column, sign=-1.0)
    if not origins:
        return ""
    far = origins[-1]
    file, line, _ = place_text(recording, series.places[far].line)
    return f"It begins at {series.places[far].op} ({file}:{line}), {2 ** -growth(series, far):.3g} times smaller than at first."


def _lifts(forecast: Forecast) -> list[Fix]:
    """What keeps a shrinking result or gradient from zero."""
    scaler = 'scaler = torch.amp.GradScaler("cuda")  # scaler.scale(loss).backward(), scaler.step(opt), scaler.update()'
    fixes = [Fix("scale the loss", scaler)] if forecast.place.phase == BACKWARD else []
    return [*fixes, Fix("a dtype with float32's range", "torch.bfloat16"), Fix("compute this in float32", "x.float()")]


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


RULES = (dtype_overflow_, dtype_underflow_, dtype_overflow)
