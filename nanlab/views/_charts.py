"""Pictures as SVG: exponent strips and charts, a few hundred bytes each, for light themes and dark
ones."""

from __future__ import annotations

import base64
import math
import struct
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from urllib.parse import quote

import numpy as np
import numpy.typing as npt
import pandas as pd

from nanlab.views._html import escape, number

GREY, BLUE, RED, AMBER, GREEN = "#808080", "#4f8fc0", "#d9453d", "#d98a1f", "#3d9150"
LOWEST, HIGHEST = -44, 24  # exponents of a strip; what lies outside goes to its ends
STRIP_WIDTH, STRIP_HEIGHT = 2 + HIGHEST - LOWEST, 17
MIDDLE = 8  # of a strip: forward above, backward below
TALL = 7


@dataclass(frozen=True)
class Line:
    """One line of a chart; a value that is not finite interrupts it."""

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


def strip(forward: pd.Series[int] | None, backward: pd.Series[int] | None, told: str) -> str:
    """Values by binary exponent, 2^-44 to 2^24: forward upward, backward downward. Heights are
    logarithmic."""
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
    x_label: str = "",
    y_label: str = "",
    size: tuple[int, int] = (440, 150),
) -> str:
    """A small chart as an image; ``told`` is what it shows, in words.

    log: a logarithmic axis of base 10; values that are not positive are left out. bands: from x to
    x, in red: not finite.
    """
    width, height = size
    left, right, top, bottom = 46, width - 8, 10, height - (30 if x_label else 18)
    scaled = [_scaled(line, log) for line in lines]
    xs = [x for line in scaled for x, _ in line] + [x for band in bands for x in band]
    xs += [level.at for level in levels if level.upright]
    ys = [y for line in scaled for _, y in line]
    for level in levels:
        if not level.upright and not (log and level.at <= 0):
            ys.append(math.log10(level.at) if log else level.at)
    x_low, x_high = _range(xs, 0.0)
    y_low, y_high = _range(ys, 0.08)
    across = (right - left) / (x_high - x_low)
    down = (bottom - top) / (y_high - y_low)

    def place(x: float, y: float) -> str:
        return f"{left + (x - x_low) * across:.4g} {bottom - (y - y_low) * down:.4g}"

    parts = [
        f'<rect x="{left + (a - x_low) * across:.4g}" y="{top}"'
        f' width="{max(2.0, (b - a) * across):.4g}" height="{bottom - top}" fill="{RED}"'
        ' opacity=".22"/>'
        for a, b in bands
    ]
    parts += [f'<path d="M{left} {top}V{bottom}H{right}" fill="none" stroke="{GREY}"/>']
    parts += _ticks(y_low, y_high, log, left, bottom, down)
    parts += _x_ticks(x_low, x_high, left, right, bottom, across)
    for level in levels:
        parts += _level(level, log, (left, right, top, bottom), (x_low, across), (y_low, down))
    for line, points in zip(lines, scaled, strict=True):
        parts += _drawn(line, points, place)
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


def image(parts: str, told: str, width: int, height: int) -> str:
    """Drawn elements as an ``<img>``, which survives a sanitiser."""
    svg = (
        f"<svg xmlns='http://www.w3.org/2000/svg' width='{width}' height='{height}' viewBox='0 0"
        f" {width} {height}' font-family='system-ui,sans-serif' font-size='10'>{parts}</svg>"
    ).replace('"', "'")
    return (
        f'<img class="nl-chart" alt="{escape(told)}" width="{width}" height="{height}" '
        f'src="data:image/svg+xml,{quote(svg, safe=SAFE)}">'
    )


SAFE = " ='/:;,.()!*@$?+-"  # what an attribute in double quotes may hold as it is


def _scaled(line: Line, log: bool) -> list[tuple[float, float]]:
    found = []
    for x, y in zip(line.x, line.y, strict=True):
        if y is None or not math.isfinite(y) or (log and y <= 0):
            found.append((x, math.nan))
        else:
            found.append((x, math.log10(y) if log else y))
    return found


def _range(values: Sequence[float], margin: float) -> tuple[float, float]:
    known = [value for value in values if math.isfinite(value)]
    low, high = min(known, default=0.0), max(known, default=1.0)
    if high == low:
        return low - 0.5, high + 0.5
    return low - margin * (high - low), high + margin * (high - low)


def _drawn(line: Line, points: list[tuple[float, float]], place: object) -> list[str]:
    assert callable(place)
    path, pen = "", "M"
    for x, y in points:
        if math.isnan(y):
            pen = "M"
            continue
        path += f"{pen}{place(x, y)}"
        pen = "L"
    known = [place(x, y).split() for x, y in points if not math.isnan(y)]
    dots = known if line.dots or len(points) < 40 else known[-1:]
    marks = "".join(f'<circle cx="{x}" cy="{y}" r="2.2"/>' for x, y in dots)
    drawn = (
        ""
        if line.dots
        else f'<path d="{path}" fill="none" stroke="{line.colour}" stroke-width="1.4"/>'
    )
    return [drawn, f'<g fill="{line.colour}">{marks}</g>' if marks else ""]


def _ticks(low: float, high: float, log: bool, left: int, bottom: int, down: float) -> list[str]:
    if log:
        step = max(1, math.ceil((high - low) / 4))
        at = [float(e) for e in range(math.ceil(low), math.floor(high) + 1) if e % step == 0]
        if not at:
            at = [low + (high - low) * part for part in (0.1, 0.9)]
        texts = [f"1e{int(e)}" if e == int(e) else number(10**e) for e in at]
    else:
        at = _round_steps(low, high, 4)
        texts = [number(value) for value in at]
    return [
        _text(left - 5, bottom - (value - low) * down + 3, text, GREY, "end")
        for value, text in zip(at, texts, strict=True)
    ]


def _x_ticks(
    low: float, high: float, left: int, right: int, bottom: int, across: float
) -> list[str]:
    return [
        _text(
            min(left + (value - low) * across, right - 4),
            bottom + 12,
            number(value),
            GREY,
            "middle",
        )
        for value in _round_steps(low, high, 6)
        if value == int(value)
    ]


def _round_steps(low: float, high: float, most: int) -> list[float]:
    """At most about ``most`` round numbers between two limits."""
    raw = (high - low) / most
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(power * n for n in (1, 2, 5, 10) if power * n >= raw * 0.999)
    first = math.ceil(low / step - 1e-9)
    return [n * step for n in range(first, math.floor(high / step + 1e-9) + 1)]


def _level(
    level: Level,
    log: bool,
    frame: tuple[int, int, int, int],
    x_axis: tuple[float, float],
    y_axis: tuple[float, float],
) -> list[str]:
    left, right, top, bottom = frame
    if level.upright:
        x = left + (level.at - x_axis[0]) * x_axis[1]
        near = x > (left + right) / 2
        label = _text(
            x + (-4 if near else 4),
            bottom - 6,
            level.label,
            level.colour,
            "end" if near else "start",
        )
        line = f"M{x:.4g} {top}V{bottom}"
    else:
        at = math.log10(level.at) if log and level.at > 0 else level.at
        y = bottom - (at - y_axis[0]) * y_axis[1]
        line, label = (
            f"M{left} {y:.4g}H{right}",
            _text(right - 2, y - 3, level.label, level.colour, "end"),
        )
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
    """A picture of one pixel a cell. cells: (rows, columns) of palette numbers; palette: red,
    green, blue, opacity."""
    rows, columns = cells.shape
    raw = b"".join(b"\0" + cells[row].tobytes() for row in range(rows))
    chunks = [
        (b"IHDR", struct.pack(">IIBBBBB", columns, rows, 8, 3, 0, 0, 0)),
        (b"PLTE", bytes(part for colour in palette for part in colour[:3])),
        (b"tRNS", bytes(colour[3] for colour in palette)),
        (b"IDAT", zlib.compress(raw, 9)),
        (b"IEND", b""),
    ]
    png = b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
        for kind, data in chunks
    )
    address = base64.b64encode(png).decode()
    style = f"image-rendering:pixelated;width:100%;height:{height}px"
    return (
        f'<img class="nl-pixels" alt="{escape(told)}" style="{style}"'
        f' src="data:image/png;base64,{address}">'
    )
