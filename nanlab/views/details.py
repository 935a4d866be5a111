"""The parts of the report below the card: explanation, annotated code, evidence, tables."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pandas as pd

from nanlab.analysis.run_up import RunUp, run_up
from nanlab.errors import NanlabError
from nanlab.program.why import Element, largest
from nanlab.rules import Finding, Fix
from nanlab.trace import Trace
from nanlab.trace.op import location
from nanlab.views import annotated, card
from nanlab.views.charts import AMBER, BLUE, GREEN, RED, Level, Line, chart, minimap
from nanlab.views.columns import (
    BAD,
    as_typed,
    bad_counts,
    columns_for,
    floats,
    is_blank,
    known,
    passes,
    rows_of,
    shortened,
    trouble_first,
    without_batches,
)
from nanlab.views.evidence import evidence, operand_names
from nanlab.views.html import data_table, ended, escape, inline, number, plural, sentence, tag

ELEMENTS = 12  # that are shown of the way back
FIRST_BAD, LARGEST = "bad", "largest"  # which element of a row a number stands for


def clickable(text: str, position: Any, which: str) -> str:
    """A number that shows its origin on a click; plain text in a static page."""
    return f'<span class="nl-number" data-why="{position}" data-which="{which}">{text}</span>'


def whence(trace: Trace, position: int, which: str) -> str:
    """The path back from the first bad element of a row, or from its largest."""
    try:
        index = None if which == FIRST_BAD else largest(trace.tensor(position))
        found = trace.why(position, index)
    except NanlabError as reason:
        return f'<div class="nl-dim">Not known: {escape(reason)}</div>'
    shown = found[:ELEMENTS]
    left = len(found) - len(shown)
    more = f'<li class="nl-gap">⋯ {left:,} more</li>' if left else ""
    items = "".join(_element_station(each) for each in shown)
    asked = "first bad element" if which == FIRST_BAD else "largest element"
    last = found[-1] if found else None
    bad = last is not None and not math.isfinite(last.value)
    told = f", back {plural(len(found), 'step')}" if bad else ""
    return (
        f'<div class="nl-title" role="heading" aria-level="3">Where the {asked} came from{told}'
        f'</div><ol class="nl-path">{items}{more}</ol>'
    )


def _element_station(element: Element) -> str:
    place = f' <span class="nl-dim">{ended(element.place)}</span>' if element.place else ""
    made = ", ".join(_named(each) for each in element.made_of)
    of = f'<div class="nl-dim">of {made}</div>' if made else ""
    return f'<li data-position="{element.position}">{_named(element)}{place}{of}</li>'


def _named(element: Element) -> str:
    at = f"[{', '.join(map(str, element.index))}]" if element.index else ""
    return f"<code>{escape(element.name)}{at}</code> = {number(element.value)}"


# The parts in the fold below the card.

ROWS = 8  # of each table; the tables themselves have all
STATIONS = 8  # of a path, lines folded
OTHERS = 12  # further findings that are shown
OPERATIONS = 10  # of one line
HEAVY = {"exponents"}  # columns that are left to the tables themselves


def section(title: str, body: str) -> str:
    """A part under a heading; "" without a body."""
    if not body:
        return ""
    return (
        f'<div class="nl-section"><div class="nl-title" role="heading" aria-level="3">{title}</div>'
        f"{body}</div>"
    )


def fold(title: str, body: str) -> str:
    """A part that opens on a click."""
    return f"<details><summary>{title}</summary>{body}</details>" if body else ""


def why(finding: Finding) -> str:
    return section("Why", f'<p class="nl-prose">{sentence(finding.explanation, finding.op)}</p>')


def source(trace: Trace, finding: Finding | None) -> str:
    """The annotated program, with the path and the operations of the selected line."""
    files = annotated.annotated(trace, finding)
    if not files:
        return ""
    beside = path(finding) if finding is not None else ""
    chosen = (
        f'<div class="nl-chosen-line" role="status">{line_of(trace, finding)}</div>'
        '<div class="nl-whence" role="status"></div>'
    )
    return (
        '<div class="nl-section"><div class="nl-title" role="heading" aria-level="3">Your code,'
        ' annotated</div><div class="nl-columns"><div class="nl-annotated" role="region"'
        f' aria-label="Annotated source">{annotated.as_html(files)}{LEGEND}</div><div'
        f' class="nl-beside">{beside}{chosen}</div></div></div>'
    )


LEGEND = (
    '<div class="nl-dim nl-legend">Bars: values by exponent, 2⁻⁴⁴ to 2²⁴; forward up, backward'
    " down. ● born here, • came in bad, ✓ left finite.</div>"
)


def path(finding: Finding) -> str:
    """The path from birth to symptom, by line of the program."""
    stations = annotated.path_by_line(finding)
    if not stations:
        return ""
    left = len(stations) - STATIONS
    shown = stations if left <= 0 else [*stations[: STATIONS - 2], None, *stations[-2:]]
    parts = [_station(each, left + 1) for each in shown]
    first = ""
    if finding.file and (stations[0]["file"], stations[0]["line"]) != (finding.file, finding.line):
        where = ended(location(finding.file, finding.line))
        first = (
            f'<li data-position="{finding.position}"><code>{where}</code> culprit'
            ' <span class="nl-dim">its first bad value comes from the line below</span></li>'
        )
    return section("From birth to symptom", f'<ol class="nl-path">{first}{"".join(parts)}</ol>')


def _station(station: dict[str, Any] | None, left: int) -> str:
    if station is None:
        return f'<li class="nl-gap">⋯ {left:,} more</li>'
    file = str(station["file"] or "")
    where = location(file, int(station["line"] or 0)) or str(station["module"] or "")
    ops = [str(op or "leaf") for op in station["ops"]]
    names = " → ".join(ops if len(ops) <= 4 else [*ops[:2], f"{len(ops) - 3:,} more", ops[-1]])
    bad = station["nonfinite"]
    count = f" · {int(bad):,} bad" if known(bad) != "" and bad else ""
    return (
        f'<li data-position="{station["position"]}"><code>{ended(where)}</code> {escape(names)} '
        f'<span class="nl-dim">{escape(station["phase"] or "")}{count}</span></li>'
    )


def line_of(trace: Trace, finding: Finding | None = None, position: int | None = None) -> str:
    """The operations on the line of a row or finding, in its step."""
    ops = trace.ops
    at = position if position is not None else (finding.position if finding is not None else -1)
    if at not in ops.index:
        return ""
    row = ops.loc[at]
    same = (ops[["step", "file", "line"]] == row[["step", "file", "line"]]).all(axis=1)
    return _operations(ops[same.fillna(False).to_numpy(dtype=bool)], at)


def ranks(trace: Trace) -> str:
    """The ranks of a distributed run with a culprit."""
    told = trace.ranks
    if told.empty:
        return ""
    cells = [
        [
            str(row["rank"]),
            str(row["step"]),
            f"<code>{ended(location(row['file'], row['line']))}</code>",
            escape(row["cause"]),
            sentence(row["title"], row["op"]),
        ]
        for _, row in told.iterrows()
    ]
    heads = ["rank", "step", "place", "cause", "what happened"]
    return section("Ranks", data_table(heads, cells, ["right", "right", "left", "left", "left"]))


def _operations(rows: pd.DataFrame, at: int) -> str:
    bad = bad_counts(rows) > 0
    shown = rows if len(rows) <= OPERATIONS else _around(rows, at)
    first = rows.iloc[0]
    cells = []
    for position, row in shown.iterrows():
        counts = [
            f"{int(row[name] or 0):,}\N{NO-BREAK SPACE}{told}"
            for name, told in COUNTED
            if int(known(row[name]) or 0)
        ]
        largest = max(
            (abs(float(row[n])) for n in ("min", "max") if not pd.isna(row[n])), default=math.nan
        )
        mark, name = "▸ " if position == at else "", escape(row["op"] or "accumulate")
        shape = str(row["shape"]).strip("()[], ").replace(" ", "")
        cells.append(
            [
                f'<span data-position="{position}">{mark}{name}</span>',
                escape(str(row["phase"])),
                escape(shape.replace(",", "×") or "scalar"),
                clickable(escape(", ".join(counts)), position, FIRST_BAD) if counts else "finite",
                clickable(number(largest), position, LARGEST) if math.isfinite(largest) else "–",
            ]
        )
    where = f"<code>{ended(location(str(first['file']), int(first['line'])))}</code>"
    told = f"{plural(len(rows), 'result')} of {where}"
    if bad.any():
        told += f", {int(bad.sum()):,} bad"
    heads = ["operation", "phase", "shape", "bad values", "largest"]
    return data_table(heads, cells, ["left", "left", "right", "left", "right"], told)


COUNTED = (("nan", "NaN"), ("posinf", "inf"), ("neginf", "−inf"))


def _around(rows: pd.DataFrame, at: int) -> pd.DataFrame:
    """The selected row, the bad ones, and the first others, in order."""
    bad = bad_counts(rows) > 0
    ranked = sorted(range(len(rows)), key=lambda i: (rows.index[i] != at, not bad[i], i))
    return rows.iloc[sorted(ranked[:OPERATIONS])]


def course(trace: Trace, finding: Finding) -> str:
    """The growth of the operand, and the update behind it."""
    made = run_up(trace, finding.position) if finding.position in trace.ops.index else None
    if made is None:
        return ""
    return section(
        "Run-up", f'<p class="nl-prose">{run_up_text(trace, made)}</p>{run_up_chart(trace, made)}'
    )


def operand_name(trace: Trace, made: RunUp) -> str:
    """The operand by its name in the source, in backticks, if it has one."""
    names = operand_names(as_typed(str(known(trace.ops.at[made.at, "source"]))), made.op)
    return f"`{names[0]}`" if names and names[0] else f"The operand of `{made.op}`"


def run_up_text(trace: Trace, made: RunUp) -> str:
    """``logvar`` reached 1,062 at step 3 (before: 0.09); exp overflows float32 above 88.7."""
    before = ", ".join(number(value) for value in made.values[-4:-1])
    told = (
        f"{operand_name(trace, made)} reached {number(made.values[-1])} at step {made.steps[-1]}"
        f" (before: {before})."
    )
    if made.values[-1] > made.limit:
        told += f" `{made.op}` overflows {made.dtype} above {number(made.limit)}."
    if made.parameter:
        times = number(made.update_ratio)
        told += (
            f" The update of step {made.update_step} moved `{made.parameter}` by {times} times its"
            " own size."
        )
    return inline(told)


def run_up_chart(trace: Trace, made: RunUp) -> str:
    """The operand by step, with its limit."""
    told = f"largest magnitude of {operand_name(trace, made)} by step, limit {number(made.limit)}"
    levels = [Level(f"limit {number(made.limit)}", made.limit)] if math.isfinite(made.limit) else []
    lines = [Line("", made.steps, made.values)]
    return chart(lines, told, log=True, levels=levels, x_label="training step", size=(440, 120))


def other_fixes(finding: Finding, which: int = -1, trace: Trace | None = None) -> str:
    """All fixes except the one on the card."""
    best = shown_fix(finding, trace)
    rest = [(i, fix) for i, fix in enumerate(finding.fixes) if fix is not best]
    # what keeps all of them from right is said once
    same = {card.reason_of(fix) for _, fix in rest} if len(rest) > 1 else {""}
    once = same.pop() if len(same) == 1 else ""
    blocks = "".join(
        card.fix_block(fix, i, which, reason=not once) + _numbers(fix) for i, fix in rest
    )
    said = f'<div class="nl-dim">{inline(once)}</div>' if once else ""
    return section("Other fixes" if best is not None else "Fixes", said + blocks)


def shown_fix(finding: Finding, trace: Trace | None) -> Fix | None:
    """The fix on the card; None if a cure is shown there, or none helps."""
    best = card.best_fix(finding)
    if best is None or best.verdict == "fails":
        return None
    cured = card.cure_of(trace) is not None and trace is not None and finding is trace.culprit
    return None if cured else best


def _numbers(fix: Any) -> str:
    parts = []
    if known(fix.distortion) != "" and fix.verdict != "fails":
        moved = f"moves healthy elements by at most {100 * float(fix.distortion):.2g} %"
        parts.append(moved if fix.distortion else "leaves healthy elements as they were")
    if known(fix.gradient_max) != "" and fix.verdict != "fails" and fix.gradient_max:
        parts.append(f"largest gradient {number(float(fix.gradient_max))}")
    return f'<div class="nl-dim nl-numbers">{"; ".join(parts)}</div>' if parts else ""


def other_findings(trace: Trace, shown: Finding | None) -> str:
    """The other findings, each in a fold."""
    rest = [(i, each) for i, each in enumerate(trace.findings) if each is not shown]
    said = {shown.explanation} if shown is not None else set()
    folds = []
    for i, each in rest[:OTHERS]:
        reason = "" if each.explanation in said else why(each)  # once for one cause
        said.add(each.explanation)
        parts = [card.card(each, trace, i), reason, evidence(each), other_fixes(each, i, trace)]
        folds.append(fold(_summary(each), "".join(parts)))
    if len(rest) > OTHERS:
        more = plural(len(rest) - OTHERS, "further finding")
        folds.append(f"<div>{more} in <code>trace.findings</code></div>")
    return section(plural(len(rest), "other finding" if shown else "finding"), "".join(folds))


def _summary(finding: Finding) -> str:
    severity = tag(finding.severity, finding.severity)
    place = location(finding.file, finding.line)
    return (
        f"{severity} {sentence(finding.title, finding.op)}"
        f" {f'<code>{ended(place)}</code>' if place else ''}"
    )


def steps(trace: Trace) -> str:
    """Loss and gradient norm by step, the minimap, and the table of steps."""
    frame = trace.steps
    if not len(frame):
        return ""
    drawn = (steps_chart(frame) if len(frame) > 1 else "") + minimap(trace)
    pictures = f'<div class="nl-columns">{drawn}</div>' if drawn else " "
    title = f"Table of {plural(len(frame), 'training step')}"
    table = fold(title, compact(frame, "steps", trace, last=True))
    return section("Training steps", pictures) + table


def steps_chart(frame: pd.DataFrame) -> str:
    """Loss and gradient norm, on a logarithmic axis if all are positive."""
    lines: list[Line] = []
    bands: list[tuple[float, float]] = []
    told: list[str] = []
    at = frame["step"].astype(float).tolist()
    for name, colour in (("loss", BLUE), ("gradient_norm", AMBER), ("loss_scale", GREEN)):
        if name not in frame or not frame[name].notna().any():
            continue
        values = floats(frame[name]).tolist()
        if name == "loss_scale" and len(set(values)) == 1:
            continue
        called = name.replace("_", " ")
        if any(map(math.isfinite, values)):
            lines.append(Line(called, at, values, colour))
        if name != "loss_scale":
            bad, said = _not_finite(at, frame[name], called)
            bands = bands or bad  # of the loss, where it has some
            told += said
    if not lines and not bands:
        return ""
    positive = [v for line in lines for v in line.y if math.isfinite(v)]
    log = bool(positive) and min(positive) > 0 and max(positive) > 20 * min(positive)
    words = "; ".join(["loss and gradient norm by training step", *told])
    caption = f'<div class="nl-dim">{"; ".join(told)}</div>' if told else ""
    alone = lines[0].label if len(lines) == 1 else ""
    picture = chart(lines, words, log=log, bands=bands, x_label="training step", y_label=alone)
    return f"<div>{picture}{caption}</div>"


def _not_finite(
    at: list[float], values: pd.Series[Any], name: str
) -> tuple[list[tuple[float, float]], list[str]]:
    """The steps with a NaN or infinite value, as bands and in words."""
    bad = np.array(at)[values.notna().to_numpy() & ~np.isfinite(floats(values))].tolist()
    if not bad:
        return [], []
    since = f"from step {bad[0]:.0f} on" if bad[-1] == at[-1] else f"in {len(bad)} steps"
    bands = [(a - 0.5, b + 0.5) for a, b in card.runs(map(int, bad))]
    return bands, [f"{name} not finite {since}"]


def backward(trace: Trace) -> str:
    """The gradient along the first bad backward pass, else the last one, and its rows."""
    frame = trace.backward
    if not len(frame):
        return ""
    all_ = passes(frame)
    chosen = next((p for p in all_ if p["worst"] in BAD), all_[-1])
    rows = rows_of(frame, chosen["step"], chosen["backward_pass"])
    title = f"Backward pass of step {chosen['step']}: {plural(len(rows), 'node')}"
    return fold(title, gain_chart(rows) + compact(rows, "backward", trace))


def gain_chart(rows: pd.DataFrame) -> str:
    """Root mean square of the gradient along a backward pass, in the engine's order."""
    values = floats(rows["grad_out_rms"]).tolist()
    bad = [i for i, status in enumerate(rows["status"].astype(str)) if status in BAD]
    began = [(f"not finite from {rows['name'].iloc[i]} on", float(i)) for i in bad[:1]]
    keep = range(0, len(values), max(1, len(values) // 400))
    line = Line("", [float(i) for i in keep], [values[i] for i in keep])
    return chart(
        [line],
        "gradient rms along the backward pass",
        log=True,
        levels=[Level(label, at, RED, True) for label, at in began],
        x_label="nodes in the order of execution",
        y_label="gradient rms",
        size=(560, 140),
    )


def operations(trace: Trace) -> str:
    if not len(trace.ops):
        return ""
    kept, all_ = len(trace.ops), int(trace.steps["ops"].sum()) if "ops" in trace.steps else 0
    title = f"{plural(kept, 'result')} kept of {all_:,}" if all_ > kept else plural(kept, "result")
    return fold(f"Operations: {title}", compact(trace.ops, "ops", trace))


def parameters(trace: Trace) -> str:
    frame = trace.parameters
    if not len(frame):
        return ""
    title = f"Parameters: {plural(len(frame), 'row')}"
    return fold(title, compact(frame, "parameters", trace, last=True))


def compact(frame: pd.DataFrame, kind: str, trace: Trace, last: bool = False) -> str:
    """A few rows of a table of the trace: the worst, or the last."""
    frame, left_out = without_batches(frame)
    rows = frame.tail(ROWS) if last else trouble_first(frame).head(ROWS)
    columns = [
        c for c in columns_for(frame, kind) if c.title not in HEAVY and not is_blank(rows, c)
    ]
    cells = [
        [_where(row) if c.title == "where" else c.html(row, trace) for c in columns]
        for row in rows.itertuples(index=False)
    ]
    caption = "; ".join(filter(None, (plural(len(frame), "row"), left_out)))
    if len(rows) < len(frame):
        caption += f"; the last {len(rows)}" if last else f"; trouble first, the top {len(rows)}"
        caption += f". All: <code>trace.{kind}</code>"
    return data_table([c.title for c in columns], cells, [c.align for c in columns], caption)


def _where(row: Any) -> str:
    if not known(row.file):
        return ""
    return (
        f"{ended(location(str(row.file), int(known(row.line) or 0)))}"
        f" <code>{escape(shortened(as_typed(str(known(row.source)))))}</code>"
    )
