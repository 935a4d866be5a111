"""A run at a glance: the magnitudes of the results around a finding, in the order of the run, as
SVG."""

from __future__ import annotations

import html
import math
from dataclasses import dataclass
from itertools import pairwise

import pandas as pd
import torch

import nanlab
from nanlab.formats import format_of
from nanlab.rules import Finding

BEFORE, AFTER = 12, 12  # rows of the trace that are drawn on either side of the finding
WIDE, TALL = 30, 150  # of one row, and of the span of the magnitudes, in pixels
LEFT, TOP, FOOT = 62, 46, 64  # room for numbers, for what is not finite, for names
REACH = 24  # binary exponents between a magnitude and a limit up to which the limit is drawn
BAD = ("nan", "posinf", "neginf")


@dataclass(frozen=True)
class Scale:
    """Where a binary exponent stands in the picture."""

    low: float
    high: float

    def y(self, exponent: float) -> float:
        """Pixels from the top."""
        share = (exponent - self.low) / (self.high - self.low)
        return TOP + TALL * (1 - min(max(share, 0.0), 1.0))


def glance(trace: nanlab.Trace, finding: Finding) -> str:
    """Picture of the rows around a finding; "" where it belongs to no row."""
    rows = around(trace.ops, finding)
    if not len(rows):
        return ""
    scale = scale_of(rows)
    width, height = LEFT + WIDE * len(rows) + 8, TOP + TALL + FOOT
    parts = [frame(rows, scale, width)]
    for i, (_, row) in enumerate(rows.iterrows()):
        parts.append(column(row, LEFT + WIDE * i, scale, int(row["position"]) == finding.position))
    words = (
        f"Magnitudes of {len(rows)} results in the order of the run; {finding.op} at line"
        f" {finding.line} is the finding"
    )
    return (
        f'<svg class="glance" viewBox="0 0 {width} {height}" width="{width}" role="img" '
        f'aria-label="{html.escape(words)}">{"".join(parts)}</svg>'
    )


def around(ops: pd.DataFrame, finding: Finding) -> pd.DataFrame:
    """The rows that are drawn: results with values, of the finding's neighbourhood."""
    rows = ops[(ops["numel"].fillna(0) > 0) & ops["dtype"].str.contains("float").fillna(False)]
    found = rows.index[rows["position"] == finding.position]
    if not len(found):
        return rows.head(0)
    at = int(rows.index.get_loc(found[0]))  # type: ignore[arg-type]
    return rows.iloc[max(0, at - BEFORE) : at + AFTER + 1]


def exponents(row: pd.Series) -> tuple[float, float] | None:
    """Smallest and largest binary exponent of a row's finite values; None without any but zero."""
    sizes = [abs(float(row[name])) for name in ("absmin", "min", "max") if not pd.isna(row[name])]
    sizes = [math.log2(size) for size in sizes if size > 0]
    return (min(sizes), max(sizes)) if sizes else None


def scale_of(rows: pd.DataFrame) -> Scale:
    """A scale that holds every magnitude, and the limits of the dtypes that are near."""
    ends = [end for _, row in rows.iterrows() for end in exponents(row) or ()] or [0.0]
    low, high = min(ends), max(ends)
    for limit in limits(rows):
        if low - REACH < limit < high + REACH:
            low, high = min(low, limit), max(high, limit)
    room = max(1.0, 0.06 * (high - low))
    return Scale(low - room, high + room)


def limits(rows: pd.DataFrame) -> dict[float, str]:
    """Binary exponents at which the dtypes of the rows end, each with its name."""
    found: dict[float, str] = {}
    for name in sorted(set(rows["dtype"].astype(str))):
        limit = format_of(getattr(torch, name))
        found[math.log2(limit.max)] = f"largest {name}"
        found[math.log2(limit.smallest_subnormal)] = f"smallest {name}"
    return found


def frame(rows: pd.DataFrame, scale: Scale, width: int) -> str:
    """Limits, numbers at the left, and the line at which backward begins."""
    parts = [f'<text x="{LEFT - 6}" y="{y}" class="g-name">{name}</text>' for name, y in
             (("NaN", 14), ("inf", 32), ("zero", TOP + TALL + 16))]  # fmt: skip
    for exponent, name in limits(rows).items():
        if scale.low < exponent < scale.high:
            y = scale.y(exponent)
            parts.append(
                f'<line x1="{LEFT}" x2="{width}" y1="{y:.0f}" y2="{y:.0f}" class="g-limit"/>'
            )
            parts.append(f'<text x="{LEFT + 3}" y="{y - 3:.0f}" class="g-limit-name">{name}</text>')
    step = next(n for n in (1, 2, 5, 10, 20, 50, 100, 500) if (scale.high - scale.low) / n <= 6)
    for exponent in range(math.ceil(scale.low / step) * step, math.floor(scale.high) + 1, step):
        y = scale.y(exponent) + 4
        if TOP + 4 < y < TOP + TALL - 2:
            parts.append(f'<text x="{LEFT - 6}" y="{y:.0f}" class="g-number">2^{exponent}</text>')
    phases = rows["phase"].astype(str).tolist()
    for i, (before, now) in enumerate(pairwise(phases), start=1):
        if now != before:
            x = LEFT + WIDE * i - WIDE / 2 + 6
            parts.append(f'<line x1="{x}" x2="{x}" y1="0" y2="{TOP + TALL + 22}" class="g-phase"/>')
            parts.append(
                f'<text x="{x + 3}" y="{TOP + TALL + FOOT - 4}" class="g-limit-name">{now}</text>'
            )
    return "".join(parts)


def column(row: pd.Series, x: float, scale: Scale, found: bool) -> str:
    """One result: a bar from its smallest to its largest magnitude, dots for NaN, inf and zeros,
    its operator."""
    bad = row["status"] in ("born", "turned")
    kind = (
        "g-found"
        if found
        else "g-born"
        if bad
        else "g-carried"
        if row["status"] == "carried"
        else "g-ok"
    )
    parts = []
    if (span := exponents(row)) is not None:
        top, foot = scale.y(span[1]), scale.y(span[0])
        height = max(3.0, foot - top)
        parts.append(
            f'<rect x="{x}" y="{foot - height:.1f}" width="12" height="{height:.1f}" rx="2"'
            f' class="{kind}"/>'
        )
    for names, y in ((("nan",), 10), (("posinf", "neginf"), 28), (("zero",), TOP + TALL + 12)):
        count = sum(int(row[name]) for name in names)
        if count:
            dot = "g-zero" if names == ("zero",) else kind
            radius = 3 + 3 * min(1.0, count / int(row["numel"]))
            told = f"<title>{count} of {int(row['numel'])}</title>"
            parts.append(
                f'<circle cx="{x + 6}" cy="{y}" r="{radius:.1f}" class="{dot}">{told}</circle>'
            )
    at = f"{x + 9},{TOP + TALL + 26}"
    name = html.escape(str(row["op"])[:14])
    parts.append(f'<text transform="translate({at}) rotate(-40)" class="g-op {kind}">{name}</text>')
    return "".join(parts)
