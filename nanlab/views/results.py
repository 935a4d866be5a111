"""HTML of replays, fixes, cures, comparisons and advice: a line, a picture, a table."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

import pandas as pd

from nanlab.capture.state import are_finite, values_of
from nanlab.formats import format_of
from nanlab.trace.op import location
from nanlab.views import card
from nanlab.views.charts import AMBER, BLUE, GREEN, GREY, PURPLE, RED, Level, Line, chart
from nanlab.views.columns import columns_for, floats
from nanlab.views.html import capital, ended, escape, fold, inline, number, plural, table
from nanlab.views.widget import style

if TYPE_CHECKING:
    from nanlab.analysis.compare import Comparison
    from nanlab.analysis.difference import Difference
    from nanlab.analysis.epsilon import EpsilonAdvice
    from nanlab.analysis.loss_scale import LossScale
    from nanlab.findings.rule import Fix
    from nanlab.program.replay import Replay
    from nanlab.rules.cure import Cure
    from nanlab.topics.clipping import Clipping

ROWS = 12  # of a difference
SHARES = ("flushed", "subnormal", "overflow")  # of the gradients, at a loss scale


def _shown(told: str, *parts: str, doors: Sequence[str] = ()) -> str:
    """A result's line, its parts, and what to look at next."""
    codes = " · ".join(f"<code>{escape(door)}</code>" for door in doors)
    closer = f'<div style="opacity:0.8;font-size:12px">Look closer: {codes}</div>' if doors else ""
    head = f'<div style="font-size:14px;font-weight:600">{inline(capital(told))}</div>'
    return f'<div style="font-size:13px;line-height:1.45">{head}{"".join(parts)}{closer}</div>'


def _card(body: str) -> str:
    return f'<style>{style("report")}</style><div class="nanlab nl-report">{body}</div>'


def _table(frame: pd.DataFrame) -> str:
    columns = columns_for(frame, "")
    cells = [[column.html(row, None) for column in columns] for row in frame.itertuples()]
    return table([c.title for c in columns], cells, [c.align for c in columns])


def fix_html(fix: Fix) -> str:
    return _card(card.fix_block(fix, 0))


def cure_html(cure: Cure) -> str:
    return _card(card.cure_block(cure))


def replay_html(replay: Replay) -> str:
    loss = "none" if replay.loss is None else number(replay.loss)
    rows = [["results", replay.state], ["loss", loss]]
    for what, tensors in (("gradients", replay.gradients), ("parameters", replay.parameters)):
        finite = [values_of(t) for t in tensors.values() if are_finite([t])]
        largest = max((float(t.abs().max()) for t in finite if t.numel()), default=None)
        size = "" if largest is None else f"; largest magnitude {number(largest)}"
        bad = [name for name in tensors if not are_finite([tensors[name]])]
        others = f" and {len(bad) - 3:,} more" if len(bad) > 3 else ""
        told = f"; not finite: {', '.join(bad[:3])}{others}" if bad else ""
        rows.append([what, f"{len(finite):,} of {len(tensors):,} finite{size}{told}"])
    branch = "another value was read at {}: the program might have taken another branch there"
    rows += [["branches", branch.format(place)] for place in replay.looked_at]
    cells = [[escape(a), escape(b)] for a, b in rows]
    return table(["", f"Replay of step {replay.step}"], cells, ["left", "left"])


def difference_html(difference: Difference) -> str:
    """The first difference of two runs, and the results that differ."""
    head, *rest = difference.told()
    told = "".join(f"<div>{escape(capital(line))}</div>" for line in rest)
    if not len(difference.table):
        return _shown(head, told)
    names = ["step", "place", "op", "module", "what", "position_a", "position_b"]
    frame = pd.DataFrame(difference.table)
    shown = frame[[name for name in names if name in frame]]
    left = len(shown) - ROWS
    more = f"<div>{left:,} more rows in <code>.table</code></div>" if left > 0 else ""
    return _shown(head, told, _table(shown.head(ROWS)), more)


def comparison_html(comparison: Comparison) -> str:
    """The relative error of each result, in running order, and the share of each line."""
    found, proof, lines = comparison.table, comparison.proof, []
    for (phase, part), colour in zip(found.groupby("phase"), (BLUE, AMBER), strict=False):
        error = part["error"].clip(lower=1e-8, upper=10.0).tolist()
        lines.append(Line(str(phase), part.index.astype(float).tolist(), error, colour, dots=True))
    levels = [Level("ulp", format_of(comparison.dtype).ulp, GREY)]
    infinite = found.index[found["overflowed"] > 0].tolist()
    levels += [Level("overflow", at, RED, True) for at in infinite[:1]]
    picture = chart(
        lines,
        f"relative error of each result in {comparison.dtype}",
        log=True,
        levels=levels,
        bands=[(a - 0.5, b + 0.5) for a, b in card.runs(infinite)],
        x_label=f"results in running order; relative error in {comparison.dtype}",
        size=(560, 150),
    )
    rows = [
        [ended(location(file, line)), number(error)]
        for (file, line), error in zip(comparison.minimal, proof["error_without"], strict=True)
    ]
    heads = ["line to keep in float32", "largest error without it"]
    parts = (picture if lines else "", table(heads, rows, ["left", "right"]) if rows else "")
    return _shown(comparison.told(), *parts, doors=(".table", ".proof"))


def clipping_html(clipping: Clipping) -> str:
    """The gradient norms by step, and the effect of each ``max_norm``."""
    history = clipping.history
    at = floats(history["step"]).tolist()
    lines = [Line("gradient norm", at, floats(history["before"]).tolist(), BLUE)]
    if clipping.kind:
        lines.append(Line("after clipping", at, floats(history["after"]).tolist(), GREEN))
    advised = clipping.advised_max_norm
    levels = [] if advised is None else [Level(f"max_norm={advised:g}", advised, GREY)]
    told = "gradient norm by training step"
    picture = chart(
        lines, told, log=True, levels=levels, x_label="training step", y_label="gradient norm"
    )
    bounds = clipping.table().reset_index()
    bounds["clipped"] = [f"{100 * share:.3g} %" for share in bounds["clipped"]]
    return _shown(clipping.told(), picture, _table(bounds), doors=(".history", ".parameters"))


def epsilon_html(advice: EpsilonAdvice) -> str:
    """Distortion and largest gradient of each epsilon."""
    log2 = [math.log2(eps) for eps in floats(advice.table["eps"]).tolist()]
    names = ("value_distortion", "gradient_distortion", "gradient_max")
    lines = [
        Line(name.replace("_", " "), log2, floats(advice.table[name]).tolist(), colour)
        for name, colour in zip(names, (BLUE, GREEN, PURPLE), strict=True)
    ]
    chosen = advice.recommended
    levels = [Level("", math.log2(chosen), GREY, upright=True)] if chosen else []
    told = "distortion and largest gradient by epsilon"
    picture = chart(
        lines,
        told,
        log=True,
        levels=levels,
        x_label="log2 of eps; dashed: the one to take",
        size=(560, 170),
    )
    return _shown(advice.told(), picture)


def scale_advice(result: LossScale) -> str:
    """The advised scales, the scale in use and the room above it, in one sentence."""
    if result.advised is None:
        return (
            f"no loss scale keeps every gradient below the largest {result.dtype}; in use:"
            f" {_power(result.used)}"
        )
    low, high = result.advised
    between = f"of {_power(low)}" if low == high else f"from {_power(low)} to {_power(high)}"
    room = result.headroom or 0
    if room >= 0:
        left = f"{plural(room, 'doubling')} below the first overflow"
    else:
        left = "so large that gradients overflow"
    return (
        f"a loss scale {between} flushes least in {result.dtype}, without overflow; in use:"
        f" {_power(result.used)}, {left}"
    )


def _power(scale: float) -> str:
    """``1,024 (2^10)``; a scale that is no power of two as it is."""
    exponent = math.log2(scale)
    if exponent != round(exponent):
        return f"{scale:,g}"
    power = f"2^{round(exponent)}"
    return f"{scale:,g} ({power})" if abs(exponent) <= 16 else power


def scale_text(result: LossScale) -> str:
    """The advice on a loss scale in one line."""
    return f"<nanlab.LossScale: {scale_advice(result)}; try .table, .parameters, .skips, .plot()>"


def scale_html(result: LossScale) -> str:
    """The advice on a loss scale, and the shares lost at each scale."""
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
        x_label=f"log2 of the loss scale; % of the gradients in {result.dtype}; dashed: in use"
        + ("; blue: advised" if known else ""),
        size=(560, 170),
    )
    rows = [
        [f"2^{k}", *(f"{100 * float(row[name]):.3g}" for name in SHARES)]
        for k, row in result.table.iterrows()
    ]
    shares = table(["loss scale", *(f"{name} (%)" for name in SHARES)], rows, ["right"] * 4)
    body = fold(f"Table of {plural(len(rows), 'loss scale')}", shares)
    return _shown(scale_advice(result), picture, body)
