"""Pictures as SVG: exponent histograms, charts, the minimap of a run."""

from __future__ import annotations

import base64
import io
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

import numpy as np
import numpy.typing as npt
import pandas as pd
import torch

from nanlab.analysis.precision import format_bins
from nanlab.trace import Trace
from nanlab.trace.op import location
from nanlab.trace.recording import Recording
from nanlab.views.columns import bad_counts
from nanlab.views.html import escape, number, plural

# Pictures as SVG: exponent strips and charts, a few hundred bytes each, for light themes and
# dark ones.

GREY, BLUE, RED, AMBER, GREEN = "#808080", "#4f8fc0", "#d9453d", "#d98a1f", "#3d9150"
PURPLE = "#b83ca5"
FATES = (RED, AMBER, BLUE, PURPLE)  # of the zones: flushed, subnormal, normal, overflow
OTHERS = {"zero": "zero", "neginf": "−inf", "posinf": "+inf", "nan": "NaN"}  # what has no exponent
LOWEST, HIGHEST = -44, 24  # exponents of a strip; what lies outside goes to its ends
STRIP_WIDTH, STRIP_HEIGHT = 2 + HIGHEST - LOWEST, 17
MIDDLE = 8  # of a strip: forward above, backward below
TALL = 7


@dataclass(frozen=True)
class Line:
    """One line of a chart, with gaps at non-finite values."""

    label: str
    x: Sequence[float]
    y: Sequence[float]
    colour: str = BLUE
    dots: bool = False


@dataclass(frozen=True)
class Level:
    """A dashed line across a chart, or down it."""

    label: str
    at: float
    colour: str = RED
    upright: bool = False


@dataclass(frozen=True)
class _Frame:
    """The drawing area of a chart: pixel bounds and data bounds."""

    left: int
    right: int
    top: int
    bottom: int
    x: tuple[float, float]
    y: tuple[float, float] = (0.0, 1.0)

    def across(self, x: float) -> float:
        """The pixel of a number from the left."""
        return self.left + (x - self.x[0]) * (self.right - self.left) / (self.x[1] - self.x[0])

    def down(self, y: float) -> float:
        """The pixel of a number from the top."""
        return self.bottom - (y - self.y[0]) * (self.bottom - self.top) / (self.y[1] - self.y[0])


def strip(forward: pd.Series[int] | None, backward: pd.Series[int] | None, told: str) -> str:
    """Values by exponent 2^-44 to 2^24: forward up, backward down, logarithmic heights."""
    if forward is None and backward is None:
        return ""
    bars = [("nl-up", forward, -1), ("nl-down", backward, 1)]
    paths = "".join(
        f'<path class="{name}" d="{_bars(counts, way)}"/>'
        for name, counts, way in bars
        if counts is not None
    )
    return (
        f'<svg class="nl-strip" width="{STRIP_WIDTH}" height="{STRIP_HEIGHT}" role="img"'
        f' aria-label="{escape(told)}">{paths}</svg>'
    )


def _bars(exponents: pd.Series[int], way: int) -> str:
    counts: dict[int, int] = {}
    for exponent, count in zip(exponents.index.tolist(), exponents.tolist(), strict=True):
        at = min(max(int(exponent), LOWEST), HIGHEST) - LOWEST
        counts[at] = counts.get(at, 0) + int(count)
    most = math.log1p(max(counts.values(), default=1))
    start = MIDDLE + (1 if way > 0 else 0)
    return "".join(
        f"M{at + 1} {start}v{way * max(1, round(TALL * math.log1p(n) / most))}"
        for at, n in sorted(counts.items())
        if n
    )


def span_of(exponents: pd.Series[int] | None) -> str:
    """``2^-12 to 2^3``; "" without a value."""
    if exponents is None or not len(exponents):
        return ""
    return f"2^{int(exponents.index.min())} to 2^{int(exponents.index.max()) + 1}"


def chart(
    lines: Sequence[Line],
    told: str,
    *,
    log: bool = False,
    levels: Sequence[Level] = (),
    bands: Sequence[tuple[float, float]] = (),
    band_colour: str = RED,
    x_label: str = "",
    y_label: str = "",
    counted: bool = True,
    size: tuple[int, int] = (440, 150),
) -> str:
    """A small chart as an image; ``told`` describes it in words.

    counted: x counts something, and has whole numbers only.
    log: use a logarithmic axis, leaving out values that are not positive. bands: (from x, to x) of
    non-finite values, in red.
    """
    width, height = size
    scaled = [_scaled(line, log) for line in lines]
    xs = [x for line in scaled for x, _ in line] + [x for band in bands for x in band]
    xs += [level.at for level in levels if level.upright]
    ys = [y for line in scaled for _, y in line]
    for level in levels:
        if not level.upright and not (log and level.at <= 0):
            ys.append(math.log10(level.at) if log else level.at)
    left, right, top, bottom = 46, width - 8, 10, height - (30 if x_label else 18)
    frame = _Frame(left, right, top, bottom, _range(xs, 0.0), _range(ys, 0.08))
    parts = [
        f'<rect x="{frame.across(a):.4g}" y="{top}"'
        f' width="{max(2.0, frame.across(b) - frame.across(a)):.4g}" height="{bottom - top}"'
        f' fill="{band_colour}" opacity=".22"/>'
        for a, b in bands
    ]
    parts += [f'<path d="M{left} {top}V{bottom}H{right}" fill="none" stroke="{GREY}"/>']
    parts += [*_ticks(frame, log), *_x_ticks(frame, counted)]
    for level in levels:
        parts += _level(level, log, frame)
    for line, points in zip(lines, scaled, strict=True):
        parts += _drawn(line, points, frame)
    named = [line for line in lines if line.label]
    spot = left + 8
    for line in named if len(named) > 1 else []:
        parts.append(_text(spot, top + 2, line.label, line.colour, "start"))
        spot += 7 * len(line.label) + 14
    if x_label:
        parts.append(_text((left + right) / 2, height - 3, x_label, GREY, "middle"))
    if y_label:
        parts.append(_text(left + 4, top + 2, y_label, GREY, "start") if len(named) < 2 else "")
    return image("".join(parts), told, width, height)


def exponents_chart(exponents: pd.Series[int], others: Mapping[str, int]) -> str:
    """An exponent histogram against float16, with a bar for each kind without an exponent.

    others: counts by the names of OTHERS; ``flushed``: zeros that had other values before.
    """
    bins, width, height = format_bins(torch.float16), 640, 130
    left, right, base = 46, width - 170, height - 18
    found = [(int(e), int(n)) for e, n in zip(exponents.index, exponents, strict=True) if n]
    low = min([bins.zero_limit - 3, *(e for e, _ in found)])
    high = max([bins.overflow_limit + 4, *(e + 1 for e, _ in found)])
    frame = _Frame(left, right, 4, base, (low, high))
    counts = {text: (int(others.get(name, 0)), name) for name, text in OTHERS.items()}
    most = max([1, *(n for _, n in found), *(n for n, _ in counts.values())])

    def bar(x: float, wide: float, count: int, colour: str, under: int = 0) -> str:
        tall = max(1.5, (base - 22) * count / most) if count else 0.0
        y = base - (base - 22) * under / most - tall
        return (
            f'<rect x="{x:.4g}" y="{y:.4g}" width="{wide:.3g}" height="{tall:.4g}"'
            f' fill="{colour}"/>'
        )

    parts = [f'<path d="M{left} {base}H{width}" fill="none" stroke="{GREY}"/>']
    for e, n in found:
        wide = max(1.0, (right - left) / (high - low) - 1)
        parts.append(bar(frame.across(e), wide, n, FATES[bins.zone(e)]))
    for edge, name in zip(bins.edges, ("0", "normal", "max"), strict=True):
        parts += _level(Level("", edge, GREY, upright=True), False, frame)[:1]
        parts.append(_text(frame.across(edge) + 3, 12, name, GREY, "start"))
    for i, (text, (n, name)) in enumerate(counts.items()):
        x = right + 20 + 38 * i
        flushed = min(n, int(others.get("flushed", 0))) if name == "zero" else 0
        parts.append(bar(x, 20, n - flushed, GREY if name == "zero" else PURPLE))
        parts.append(bar(x, 20, flushed, RED, n - flushed) if flushed else "")
        tall = (base - 22) * n / most
        parts.append(_text(x + 10, base - tall - 4, f"{n:,}", GREY, "middle"))
        parts.append(_text(x + 10, height - 5, text, GREY, "middle"))
    for e in range(math.ceil(low / 10) * 10, high, 10):
        parts.append(_text(frame.across(e), height - 5, f"2^{e}", GREY, "middle"))
    told = f"{bins.name}: values by exponent, {span_of(exponents) or 'none finite and not zero'}"
    return image("".join(parts), told, width, height)


FITS = "display:block;height:auto;max-width:100%"


def image(parts: str, told: str, width: int, height: int) -> str:
    """SVG elements as an ``<img>``, which passes a notebook's sanitiser."""
    svg = (
        f"<svg xmlns='http://www.w3.org/2000/svg' width='{width}' height='{height}' viewBox='0 0"
        f" {width} {height}' font-family='system-ui,sans-serif' font-size='10'>{parts}</svg>"
    ).replace('"', "'")
    return (
        f'<img class="nl-chart" style="{FITS}" alt="{escape(told)}" width="{width}" '
        f'height="{height}" '
        f'src="data:image/svg+xml,{quote(svg, safe=SAFE)}">'
    )


SAFE = " ='/:;,.()!*@$?+-"  # what an attribute in double quotes may hold as it is


def _scaled(line: Line, log: bool) -> list[tuple[float, float]]:
    def scaled(y: float | None) -> float:
        if y is None or not math.isfinite(y) or (log and y <= 0):
            return math.nan
        return math.log10(y) if log else y

    return [(x, scaled(y)) for x, y in zip(line.x, line.y, strict=True)]


def _range(values: Sequence[float], margin: float) -> tuple[float, float]:
    known = [value for value in values if math.isfinite(value)]
    low, high = min(known, default=0.0), max(known, default=1.0)
    if high == low:
        return low - 0.5, high + 0.5
    return low - margin * (high - low), high + margin * (high - low)


def _drawn(line: Line, points: list[tuple[float, float]], frame: _Frame) -> list[str]:
    path, pen, known = "", "M", list[tuple[str, str]]()
    for x, y in points:
        if math.isnan(y):
            pen = "M"
            continue
        known.append((f"{frame.across(x):.4g}", f"{frame.down(y):.4g}"))
        path += f"{pen}{' '.join(known[-1])}"
        pen = "L"
    dots = known if line.dots or len(points) < 40 else known[-1:]
    marks = "".join(f'<circle cx="{x}" cy="{y}" r="2.2"/>' for x, y in dots)
    stroke = f'fill="none" stroke="{line.colour}" stroke-width="1.4"'
    drawn = "" if line.dots else f'<path d="{path}" {stroke}/>'
    return [drawn, f'<g fill="{line.colour}">{marks}</g>' if marks else ""]


def _ticks(frame: _Frame, log: bool) -> list[str]:
    low, high = frame.y
    if log:
        step = max(1, math.ceil((high - low) / 4))
        at = [float(e) for e in range(math.ceil(low), math.floor(high) + 1) if e % step == 0]
        if len(at) < 2:
            at = [low + (high - low) * part for part in (0.1, 0.9)]
        texts = [number(10.0**e) for e in at]
    else:
        at = _round_steps(low, high, 4)
        texts = [number(value) for value in at]
    return [
        _text(frame.left - 5, frame.down(value) + 3, text, GREY, "end")
        for value, text in zip(at, texts, strict=True)
    ]


def _x_ticks(frame: _Frame, counted: bool) -> list[str]:
    spot, most = frame.across, frame.right - 4
    return [
        _text(min(spot(value), most), frame.bottom + 12, number(value), GREY, "middle")
        for value in _round_steps(*frame.x, 6)
        if not counted or value == int(value)
    ]


def _round_steps(low: float, high: float, most: int) -> list[float]:
    """At most about ``most`` round numbers between two limits."""
    raw = (high - low) / most
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(power * n for n in (1, 2, 5, 10) if power * n >= raw * 0.999)
    first = math.ceil(low / step - 1e-9)
    return [n * step for n in range(first, math.floor(high / step + 1e-9) + 1)]


def _level(level: Level, log: bool, frame: _Frame) -> list[str]:
    if level.upright:
        x = frame.across(level.at)
        aside, anchor = (-4, "end") if x > (frame.left + frame.right) / 2 else (4, "start")
        label = _text(x + aside, frame.bottom - 6, level.label, level.colour, anchor)
        line = f"M{x:.4g} {frame.top}V{frame.bottom}"
    else:
        y = frame.down(math.log10(level.at) if log and level.at > 0 else level.at)
        line = f"M{frame.left} {y:.4g}H{frame.right}"
        label = _text(frame.right - 2, y - 3, level.label, level.colour, "end")
    return [f'<path d="{line}" stroke="{level.colour}" stroke-dasharray="4 3" fill="none"/>', label]


def _text(x: float, y: float, text: str, colour: str, anchor: str) -> str:
    return (
        f'<text x="{x:.4g}" y="{y:.4g}" fill="{colour}"'
        f' text-anchor="{anchor}">{escape(text)}</text>'
    )


def pixels(
    cells: npt.NDArray[np.uint8],
    palette: Sequence[tuple[int, int, int, int]],
    told: str,
    height: int,
) -> str:
    """A picture with a pixel per cell. cells: (rows, columns) of numbers; palette: RGBA."""
    style = f"image-rendering:pixelated;width:100%;height:{height}px"
    return (
        f'<img class="nl-pixels" alt="{escape(told)}" style="{style}" src="{png(cells, palette)}">'
    )


def png(cells: npt.NDArray[np.uint8], palette: Sequence[tuple[int, int, int, int]] = ()) -> str:
    """The data URL of a picture. cells: (rows, columns) of grey or of palette numbers (RGBA), or
    (rows, columns, 3) of RGB."""
    from PIL import Image  # here, for a cell that shows no picture has no use for it

    image, file = Image.fromarray(cells), io.BytesIO()
    if palette:
        image.putpalette([part for colour in palette for part in colour[:3]])
        image.info["transparency"] = bytes(colour[3] for colour in palette)
    image.save(file, "PNG", optimize=True)
    return f"data:image/png;base64,{base64.b64encode(file.getvalue()).decode()}"


# Exponent histograms as the browser draws them.


def trace_row(trace: Trace, position: Any) -> pd.Series[Any] | None:
    """The row of ``trace.ops`` at a position; None where there is none."""
    if position is None or pd.isna(position):
        return None
    ops = trace.ops
    at = int(position)
    if at < len(ops) and ops["position"].iat[at] == at:
        return ops.iloc[at]
    found = ops[ops["position"] == at]
    return found.iloc[0] if len(found) else None


def dense(exponents: pd.Series[int]) -> dict[str, Any]:
    """first: the lowest exponent; counts: of each exponent from there on."""
    if not len(exponents):
        return {"first": 0, "counts": []}
    low, high = int(exponents.index.min()), int(exponents.index.max())
    counts = exponents.reindex(range(low, high + 1), fill_value=0)
    return {"first": low, "counts": counts.astype("int64").tolist()}


def browser_histogram(trace: Trace, row: pd.Series[Any] | None) -> dict[str, Any]:
    """Histogram of a row with zeros, infinities, NaN; adds up to numel. Empty: unknown."""
    if row is None or pd.isna(row["numel"]):
        return {}
    names = ("numel", "zero", "neginf", "posinf", "nan")
    counted = trace.histogram(int(row["position"]), replays=False)
    return dense(counted) | {name: int(row[name]) for name in names}


def twin_histogram(trace: Trace, row: pd.Series[Any]) -> pd.Series[int] | None:
    """The histogram of the float32 twin of a row; None without a shadow watch."""
    found = _shadow_row(trace, row)
    return found["exponents"] if found is not None and "exponents" in found else None


def twin_for_browser(trace: Trace, row: pd.Series[Any]) -> dict[str, Any] | None:
    """The twin's histogram for the browser, and ``flushed``: values zero only in the row."""
    found = _shadow_row(trace, row)
    if found is None:
        return None
    others = {
        name: int(found.get(f"twin_{name}", 0)) for name in ("zero", "neginf", "posinf", "nan")
    }
    return dense(found["exponents"]) | others | {"flushed": int(found["flushed"])}


def before_rounding(trace: Trace, row: pd.Series[Any]) -> pd.Series[int]:
    """Histogram of a row before rounding: that of its twin, if it has one."""
    twin = twin_histogram(trace, row)
    return trace.histogram(int(row["position"]), replays=False) if twin is None else twin


def _shadow_row(trace: Trace, row: pd.Series[Any]) -> pd.Series[Any] | None:
    found = trace.shadow[trace.shadow["position"] == row["position"]]
    return found.iloc[0] if len(found) else None


# All steps of a run as a picture: a row a step, a column an operation, one pixel each; a part
# of it enlarged.

UNSEEN, FINE, FLUSHED, BAD = range(4)
PALETTE = [(128, 128, 128, 0), (128, 128, 128, 60), (222, 145, 30, 255), (217, 60, 52, 255)]
WIDEST = 900  # columns; neighbours share one beyond that, which shows the worst of them
PHASES = {"forward": 0, "backward": 1, "optimizer": 2, "recompute": 3, "other": 4}
Cells = npt.NDArray[np.uint8]
WHOLE = (0.0, 1.0, 0.0, 1.0)


@dataclass(frozen=True)
class Part:
    """A rectangle of the picture: rows and columns, ends excluded."""

    top: int
    bottom: int
    left: int
    right: int

    @classmethod
    def of(cls, window: Sequence[float], rows: int, columns: int) -> Part:
        """window: left, right, top, bottom as shares of the whole picture."""
        left, right, top, bottom = (min(1.0, max(0.0, float(share))) for share in window)
        top_, left_ = min(int(top * rows), rows - 1), min(int(left * columns), columns - 1)
        bottom_ = max(top_ + 1, int(np.ceil(bottom * rows)))
        return cls(top_, bottom_, left_, max(left_ + 1, int(np.ceil(right * columns))))


def closed(recording: Recording) -> tuple[Cells, npt.NDArray[np.int64]]:
    """Closed steps as (steps, operations) of UNSEEN, FINE, FLUSHED or BAD; rows' steps."""
    series = recording.training.series
    table = series.table
    steps = np.array([recording.step_of(end - 1) for end in series.steps], np.int64)
    zero = np.isneginf(table)
    always = zero.all(axis=0) if len(table) else np.zeros(table.shape[1], bool)
    found = np.full(table.shape, FINE, np.uint8)
    found[np.isnan(table)] = UNSEEN
    found[zero & ~always] = FLUSHED
    found[np.isposinf(table)] = BAD
    return found, steps


def cells(trace: Trace) -> tuple[Cells, npt.NDArray[np.int64]]:
    """The cells of a whole run, with the last step even if it did not end."""
    found, steps = closed(trace.recording)
    if not len(trace.ops):
        return found, steps
    last = int(trace.ops["step"].max())
    if not len(steps) or last > steps[-1]:
        row = np.zeros(found.shape[1], np.uint8)
        for column, (_, is_bad) in by_column(trace, last).items():
            row[column] = BAD if is_bad else FINE
        found, steps = np.vstack([found, row]), np.append(steps, last)
    return found, steps


def by_column(trace: Trace, step: int) -> dict[int, tuple[int, bool]]:
    """Position and badness of a kept row by its column: line, operator, module, turn."""
    ops, recording = trace.ops, trace.recording
    names, files = recording.modules.items, recording.places
    turns: dict[tuple[object, ...], list[int]] = {}
    for column, place in enumerate(recording.training.series.places):
        key = (place.op, place.phase, names[place.module], *files[place.line][:2])
        turns.setdefault(key, []).append(column)
    rows = ops[(ops["step"] == step).to_numpy(dtype=bool)]
    bad = bad_counts(rows) > 0
    columns = (rows[name] for name in ("op", "phase", "module", "file", "line"))
    seen = zip(rows.index, *columns, bad, strict=True)
    found = {}
    for position, op, phase, module, file, line, is_bad in seen:
        waiting = turns.get((op, PHASES.get(str(phase), 4), module, file, int(line)))
        if waiting:
            found[waiting.pop(0)] = int(position), bool(is_bad)
    return found


def position_at(trace: Trace, across: float, down: float) -> int | None:
    """The row of ``trace.ops`` at a point in shares; for a folded step, that of the last."""
    found, steps = cells(trace)
    if not found.size:
        return None
    part = Part.of((across, across, down, down), *found.shape)
    kept = set(trace.ops["step"].tolist())
    step = int(steps[part.top])
    there = by_column(trace, step if step in kept else max(kept, default=step))
    near = min(there, key=lambda column: abs(column - part.left), default=None)
    return None if near is None else there[near][0]


def minimap(trace: Trace, window: Sequence[float] = WHOLE) -> str:
    """The picture with its legend, or a window of it; "" with fewer than two steps."""
    found, steps = cells(trace)
    if len(steps) < 2 or not found.shape[1]:
        return ""
    part = Part.of(window, *found.shape)
    shown = found[part.top : part.bottom, part.left : part.right]
    bad = plural(int((shown == BAD).sum()), "result")
    told = f"{_shown_range(steps, part)} by {plural(shown.shape[1], 'result')}: {bad} not finite"
    height = min(150, max(30, 4 * len(steps)))
    legend = (
        "One pixel a result: steps downward, the operations of a step across. Grey: finite; amber:"
        " all zero; red: not finite."
        if tuple(window) == WHOLE
        else f"{_shown_range(steps, part)}, {_places(trace, part)}: {bad} not finite."
    )
    share = ",".join(f"{each:.6g}" for each in window)
    return (
        f'<div class="nl-minimap" data-window="{share}">'
        f"{pixels(narrowed(shown), PALETTE, escape(told), height)}"
        f'<div class="nl-dim nl-legend" role="status">{escape(legend)}</div></div>'
    )


def _shown_range(steps: npt.NDArray[np.int64], part: Part) -> str:
    first, last = steps[part.top], steps[part.bottom - 1]
    return f"Step {first}" if first == last else f"Steps {first} to {last}"


def _places(trace: Trace, part: Part) -> str:
    """``In[2]:4 to In[2]:7``: the lines of the first and the last column."""
    recording = trace.recording
    places = recording.training.series.places
    ends = [recording.places[places[at].line] for at in (part.left, part.right - 1)]
    first, last = (location(file, line) for file, line, *_ in ends)
    return first if first == last else f"{first} to {last}"


def narrowed(found: Cells) -> Cells:
    """At most WIDEST columns, each the worst of a group."""
    width = found.shape[1]
    if width <= WIDEST:
        return found
    starts = np.linspace(0, width, WIDEST, endpoint=False).astype(int)
    narrow: Cells = np.maximum.reduceat(found, starts, axis=1)
    return narrow
