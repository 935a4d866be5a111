"""The advice on a loss scale, as HTML and as text."""

from __future__ import annotations

import math
from typing import Any

from nanlab.analysis.loss_scale import LossScale
from nanlab.views.charts import AMBER, BLUE, GREY, PURPLE, RED, Level, Line, chart
from nanlab.views.html import escape, fold, plural, table

SHARES = ("flushed", "subnormal", "overflow")


def advice(result: LossScale) -> str:
    """The advised scales, the scale in use and the room above it, in one sentence."""
    if result.advised is None:
        return (
            f"no loss scale keeps every gradient below the largest {result.dtype}; in use:"
            f" {power(result.used)}"
        )
    low, high = result.advised
    between = power(low) if low == high else f"{power(low)} to {power(high)}"
    room = result.headroom or 0
    if room >= 0:
        left = f"{plural(room, 'doubling')} below the first overflow"
    else:
        left = "so large that gradients overflow"
    return (
        f"loss scale for {result.dtype}: {between} flushes least and overflows nothing; in use:"
        f" {power(result.used)}, {left}"
    )


def power(scale: float) -> str:
    """``2^10 = 1,024``; a scale that is no power of two as it is."""
    exponent = math.log2(scale)
    if exponent != round(exponent):
        return f"{scale:,g}"
    return f"2^{round(exponent)}" + (f" = {int(scale):,}" if 0 <= exponent <= 20 else "")


def as_text(result: LossScale) -> str:
    """The advice in one line."""
    return f"<nanlab.LossScale: {advice(result)}; try .table, .parameters, .skips, .plot()>"


def as_html(result: LossScale) -> str:
    """The advice, the shares against the scale as a figure, and as a table in a fold."""
    told = advice(result)
    title = (
        f'<div style="font-size:15px;font-weight:600">{escape(told[0].upper() + told[1:])}</div>'
    )
    at = result.table.index.astype(float).tolist()
    lines = [
        Line(name, at, (100 * result.table[name]).tolist(), colour)
        for name, colour in zip(SHARES, (RED, AMBER, PURPLE), strict=True)
    ]
    known = result.advised and tuple(math.log2(scale) for scale in result.advised)
    picture = chart(
        lines,
        "shares of the gradients flushed, subnormal and overflowing by loss scale",
        levels=[Level("", math.log2(result.used), GREY, upright=True)],
        bands=[(known[0] - 0.5, known[1] + 0.5)] if known else [],
        band_colour=BLUE,
        x_label=f"log2 of the loss scale; % of the gradients in {result.dtype}"
        + "; dashed: in use"
        + ("; blue: advised" if known else ""),
        size=(560, 170),
    )
    rows = [
        [f"2^{k}", *(_percent(row[name]) for name in SHARES)] for k, row in result.table.iterrows()
    ]
    shares = table(["loss scale", *(f"{name} (%)" for name in SHARES)], rows, ["right"] * 4)
    body = fold(f"Table of {plural(len(rows), 'loss scale')}", shares)
    return f'<div style="font-size:13px;line-height:1.45">{title}{picture}{body}</div>'


def _percent(share: Any) -> str:
    return f"{100 * float(share):.3g}"
