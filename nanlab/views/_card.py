"""The card that a person reads in three seconds: what, where, the line, the best fix, the
samples."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from nanlab.trace.locations import location
from nanlab.views import _remedy
from nanlab.views._columns import known
from nanlab.views._html import TINTS, escape, plural, sentence
from nanlab.views._source import as_typed, excerpt

if TYPE_CHECKING:
    from nanlab.rules import Finding
    from nanlab.trace import Trace

RANGES = 8  # of sample numbers that are shown
EDGES = {
    "error": "rgba(217,69,61,0.9)",
    "warning": "rgba(217,138,31,0.9)",
    "note": "rgba(92,107,192,0.9)",
}


def card(finding: Finding, trace: Trace | None = None, which: int = -1, waiting: str = "") -> str:
    """Headline with place, three lines of code, the best fix, the samples.

    which: its number in ``trace.findings``. waiting: what stands in the place of fixes that were
    not tried yet.
    """
    remedy = _remedy.waiting(waiting) if waiting else _remedy.first_remedy(finding, trace, which)
    parts = [
        headline(finding),
        facts(finding),
        code(finding, trace),
        before(finding, trace),
        remedy,
    ]
    parts.append(samples(finding, trace))
    edge = EDGES.get(finding.severity, EDGES["note"])
    style = f"border-left:4px solid {edge};padding-left:10px"
    return f'<div class="nl-card nl-{finding.severity}" style="{style}">{"".join(parts)}</div>'


def headline(finding: Finding) -> str:
    """The place and what happened there."""
    place = location(finding.file, finding.line)
    where = f'<code class="nl-place">{escape(place)}</code> ' if place else ""
    coming = HEADING.get(finding.symptom, "")
    words = sentence(finding.title, "" if coming else finding.op)
    return (
        '<div class="nl-headline" role="heading"'
        f' aria-level="2">{where}<b>{coming}{words}</b></div>'
    )


HEADING = {"trend-overflow": "Heading for overflow: ", "trend-underflow": "Heading for zero: "}


def facts(finding: Finding) -> str:
    """Module, step, phase, symptom and cause, in one line."""
    step = f"step {finding.step}" if known(finding.step) != "" and finding.step >= 0 else ""
    module = f"in <code>{escape(finding.module)}</code>" if finding.module else ""
    symptom = SYMPTOMS.get(finding.symptom, "")
    rank = finding.rank
    parts = [
        module,
        step,
        finding.phase,
        symptom,
        f"rank {rank}" if rank is not None else "",
        escape(finding.cause),
    ]
    if finding.library:
        file, line, function = finding.library
        parts.append(f"inside <code>{escape(function)}</code> ({escape(location(file, line))})")
    return f'<div class="nl-dim">{" · ".join(part for part in parts if part)}</div>'


SYMPTOMS = {
    "loss-nan": "NaN in the loss",
    "loss-inf": "infinity in the loss",
    "grad-nan": "NaN in a gradient",
    "grad-inf": "infinity in a gradient",
    "param-nan": "NaN in a parameter",
    "param-inf": "infinity in a parameter",
    "state-nan": "NaN in an optimizer state",
    "state-inf": "infinity in an optimizer state",
}


def code(finding: Finding, trace: Trace | None, context: int = 1) -> str:
    """The line with its neighbours; the line alone where no more is known."""
    lines = (
        excerpt(trace, finding.file, finding.line, context)
        if trace is not None and finding.file
        else []
    )
    if not lines and finding.source:
        lines = [(finding.line, as_typed(finding.source))]
    return source_block(lines, finding.line)


def source_block(lines: Iterable[tuple[int, str]], marked: int) -> str:
    """Numbered lines, one of them marked."""
    rows = "\n".join(
        f'<span class="nl-row{" nl-hit" if n == marked else ""}"{HIT if n == marked else ""}>'
        f'<span class="nl-no">{"→" if n == marked else " "}{n:>4} </span>{escape(text)} </span>'
        for n, text in lines
    )
    return f'<pre class="nl-code" tabindex="0">{rows}</pre>' if rows else ""


def before(finding: Finding, trace: Trace | None) -> str:
    """The update that threw a parameter behind the culprit, in the step before."""
    if trace is None or finding is not trace.culprit:
        return ""
    thrown = (
        each
        for each in trace.own_findings
        if (each.cause, each.phase, each.step) == ("learning-rate", "optimizer", finding.step - 1)
    )
    found = next(thrown, None)
    if found is None:
        return ""
    place = f"<code>{escape(location(found.file, found.line))}</code> " if found.file else ""
    return f'<div class="nl-samples">Just before: {place}{sentence(found.title)}</div>'


HIT = f' style="background:{TINTS["error"]}"'


def samples(finding: Finding, trace: Trace | None) -> str:
    """Which samples of the batch carry the fault: ``all 128 samples``, ``3 of 128 samples: 4,
    7–9``."""
    if not finding.samples:
        return ""
    batch = batch_size(finding, trace)
    count = len(finding.samples)
    if batch == count:
        told = "the only sample" if count == 1 else f"all {count:,} samples"
        return f'<div class="nl-samples">In the batch: {told}</div>'
    of = f" of {batch:,}" if batch and batch > count else ""
    return (
        f'<div class="nl-samples">In the batch: {of_samples(count, of)}:'
        f" {ranges(finding.samples)}</div>"
    )


def of_samples(count: int, of: str) -> str:
    """``1 sample``, ``3 of 128 samples``."""
    return f"{count:,}{of} samples" if of else plural(count, "sample")


def batch_size(finding: Finding, trace: Trace | None) -> int:
    """Rows of the batch: the leading dimension of the faulty result; 0 where it is not known."""
    if trace is None:
        return 0
    for position in [finding.position, *(station.get("position", -1) for station in finding.path)]:
        if position in trace.ops.index:
            shape = str(trace.ops.at[position, "shape"]).strip("()[] ").split(",")
            if shape[0].strip().isdigit() and int(shape[0]) > max(finding.samples, default=-1):
                return int(shape[0])
    return 0


def ranges(numbers: Iterable[int]) -> str:
    """``0–3, 7, 9 and 4 more``."""
    runs: list[list[int]] = []
    for n in sorted(numbers):
        if runs and n == runs[-1][1] + 1:
            runs[-1][1] = n
        else:
            runs.append([n, n])
    shown = ", ".join(
        str(a) if a == b else f"{a}{', ' if b == a + 1 else '–'}{b}" for a, b in runs[:RANGES]
    )
    left = sum(b - a + 1 for a, b in runs[RANGES:])
    return f"{shown} and {left:,} more" if left else shown
