"""Findings as text: for a terminal, an issue, the report."""

from __future__ import annotations

import os
import platform
import re
from typing import IO, Any

import pandas as pd
import torch

from nanlab.analysis.precision import headroom
from nanlab.analysis.run_up import reproduction
from nanlab.analysis.signal_loss import first_losses
from nanlab.operators import spoken
from nanlab.rules import Finding, Path
from nanlab.trace import Trace
from nanlab.trace.history import Place
from nanlab.trace.op import location, module_name
from nanlab.views.columns import as_typed, excerpt, known, shortened
from nanlab.views.evidence import operand_names
from nanlab.views.html import escape, fold, number, plural, table

# A finding as text.


def first_of(trace: Trace) -> Finding | None:
    """The finding on the card: the culprit, else the first error or warning."""
    return trace.culprit or next((f for f in trace.findings if f.severity != "note"), None)


def known_first(trace: Trace) -> Finding | None:
    """The finding on the card, as known before any fix is tried."""
    return trace.culprit or next((f for f in trace.own_findings if f.severity != "note"), None)


def is_tried(trace: Trace) -> bool:
    """Whether the fixes of the finding on the card were tried."""
    found = known_first(trace)
    return found is None or getattr(found.fixes, "tried", True)


def place(finding: Finding) -> str:
    """``train.py:41, in encoder.0, step 3, backward``; unknown parts are left out."""
    module = f"in {module_name(finding.module)}" if finding.module else ""
    inside = f"inside {library_text(finding)}" if finding.library else ""
    step = finding.when if known(finding.step) != "" and finding.step >= 0 else ""
    return ", ".join(
        part
        for part in (location(finding.file, finding.line), inside, module, step, finding.phase)
        if part
    )


def library_text(finding: Finding) -> str:
    """``kornia/geometry/linalg.py:41 (transform)``: the origin inside a library."""
    if finding.library is None:
        return ""
    file, line, function = finding.library
    return location(file, line) + (f" ({function})" if function else "")


def as_text(finding: Finding) -> str:
    lines = [f"{finding.severity}: {finding.title}", f"  at {place(finding)}"]
    lines += [f"    {finding.source}"] if finding.source else []
    lines += [f"  {finding.explanation}"]
    lines += [f"  path: {Path(finding.path).chain()}"] if finding.path else []
    for fix in finding.fixes:
        why = f": {fix.why}" if fix.why else ""
        lines.append(f"  fix ({fix.verdict}{why}): {fix.title}")
        lines += [f"    {row}" for row in fix.lines]
    return "\n".join(lines)


# The headroom of a run in low precision, in one line.

BIG, SMALL = "above its maximum", "below its smallest normal number"


def headroom_line(trace: Trace) -> str:
    """``Room in float16: the largest result is 2.1 bits below its maximum, at blocks.0; ...``; ""
    if unknown.
    """
    found = headroom(trace)
    if found is None:
        return ""
    ends = [
        (found.ceiling, "largest result is {} below its maximum", BIG, found.highest),
        (found.floor, "smallest is {} above its smallest normal number", SMALL, found.lowest),
    ]
    beyond = [
        f"{_at(trace, place)} is {_bits(bits)} {past}" for bits, _, past, place in ends if bits < 0
    ]
    if found.overflow is not None:
        beyond.insert(0, f"{_at(trace, found.overflow)} overflows")
    if beyond:
        whose = "Out of the normal range of" if found.ran else "Not safe in"
        return f"{whose} {found.dtype}: {', '.join(beyond)}."
    room = (f"the {to.format(_bits(bits))}, at {_at(trace, place)}" for bits, to, _, place in ends)
    return f"Room in {found.dtype}: {'; '.join(room)}."


def _bits(bits: float) -> str:
    if abs(bits) < 0.05:
        return "less than 0.1 bits"
    return f"{abs(bits):.{int(abs(bits) < 10)}f} bits"


def _at(trace: Trace, place: Place) -> str:
    """The module, or the line, and the operator."""
    recording = trace.recording
    module = recording.modules.items[place.module]
    file, line, _ = recording.places[place.line]
    gradient = "the gradient of " if place.phase == 1 else ""
    where = module_name(module) or (f"{file.rsplit('/', 1)[-1]}:{line}" if file else "")
    return f"{gradient}{where} ({place.op})" if where else f"{gradient}{place.op}"


# The places where low precision loses signal first, in words.

PLACES = 6  # that are listed
TELLING = 0.5  # share of a result's values from which a loss is told without being asked for


def told(loss: Any) -> str:
    """The loss at one place, in words; ``loss``: a row of ``first_losses``."""
    if loss.told_by == "epsilon":
        what = "the epsilon" if pd.isna(loss.largest) else number(loss.largest)
        return f"{what} is 0 in {loss.dtype}: {spoken(loss.op)} changes nothing"
    share = "all" if loss.share == 1 else f"{100 * loss.share:.3g} %"
    flushed = (
        f"{spoken(loss.op)} flushes {share} of its non-zero values ({loss.lost:,}) to zero in"
        f" {loss.dtype}"
    )
    if pd.isna(loss.largest):
        return flushed
    return f"{flushed}; in float32 they reach {number(loss.largest)}"


def loss_place(loss: Any) -> str:
    """``train.py:41, in encoder.0, forward``, without a step: it recurs in each."""
    where = f"{str(loss.file).rsplit('/', 1)[-1]}:{loss.line}" if loss.file else ""
    module = f"in {module_name(loss.module)}" if loss.module else ""
    return ", ".join(part for part in (where, module, loss.phase) if part)


def first_loss(trace: Trace) -> Any | None:
    """The first place that loses at least half of a result, or an epsilon; None: none."""
    rows = first_losses(trace)
    return next(rows[rows["share"] >= TELLING].itertuples(index=False), None)


def line(trace: Trace) -> str:
    """The first large loss in one line; "" if there is none."""
    loss = first_loss(trace)
    if loss is None:
        return ""
    source = f"  ({as_typed(loss.source)})" if loss.source else ""
    return f"Signal is lost first at {loss_place(loss)}: {told(loss)}{source}"


def losses_section(trace: Trace, great: bool) -> str:
    """The first places, if one loses half of its values (``great``); in a fold, if none does."""
    rows = first_losses(trace)
    if not len(rows) or great != (rows["share"] >= TELLING).any():
        return ""
    cells = [_cells(loss) for loss in rows.head(PLACES).itertuples(index=False)]
    more = f"the first {PLACES} of {plural(len(rows), 'place')}, in the order of the run"
    title, heads = "Where signal is lost first", ["where", "source", "what is lost"]
    body = table(heads, cells, ["left"] * 3, more if len(rows) > PLACES else "")
    if not great:
        return fold(f"{title}: {plural(len(rows), 'place')}", body)
    return f'<div style="margin-top:8px"><div style="font-weight:600">{title}</div>{body}</div>'


def _cells(loss: Any) -> list[str]:
    source = (
        f'<span style="font:12px monospace">{escape(shortened(as_typed(loss.source), 60))}</span>'
    )
    words = f'<div style="white-space:normal;min-width:18em">{escape(told(loss))}</div>'
    return [escape(loss_place(loss)), source, words]


# A finding as the text of an issue.


def reproduction_of(trace: Trace, finding: Finding) -> str:
    """A program of a dozen lines with the fault; "" if none can be made."""
    if finding.position < 0:
        return ""
    names = operand_names(as_typed(finding.source), finding.op)
    return reproduction(trace, finding.position, finding.title, names)


def as_issue(trace: Trace, finding: Finding, program: str) -> str:
    """The finding as a Markdown issue."""
    place = location(finding.file, finding.line) or "unknown line"
    where = f"`{place}`" + (f", in `{finding.module}`" if finding.module else "")
    lines = excerpt(trace, finding.file, finding.line) if finding.file else []
    marked = [f"{'>' if n == finding.line else ' '} {n:>4}  {text}" for n, text in lines]
    parts = [
        f"### {finding.title}",
        f"At {where}, {finding.when}, {finding.phase} (`{finding.cause}`).",
    ]
    parts += ["\n".join(["```", *marked, "```"])] if marked else []
    parts += [finding.explanation]
    parts += [f"Path: {Path(finding.path).chain()}"] if finding.path else []
    parts += [f"Minimal reproduction:\n\n```python\n{program.rstrip()}\n```"] if program else []
    tried = [
        f"- {fix.verdict}: {fix.title}\n  `{fix.code}`"
        for fix in finding.fixes
        if "\n" not in fix.code
    ]
    parts += ["Fixes that nanlab offers:\n\n" + "\n".join(tried)] if tried else []
    parts += [f"torch {torch.__version__}, Python {platform.python_version()}, {platform.system()}"]
    return "\n\n".join(parts) + "\n"


# A report for the terminal: its text, in colour where the terminal has any.

_COLOURS = {"error": 31, "warning": 33, "note": 36}
_COLOURS |= {"verified": 32, "fails": 31, "finite": 33, "untried": 36}
_BOLD, _DIM = 1, 2
_HEAD = re.compile(r"^(error|warning|note)(: .*)$")
_FIX = re.compile(r"^(  fix \()(\w+)([^)]*\))(.*)$")


def is_coloured(stream: IO[str]) -> bool:
    """Whether to colour: a terminal, unless ``NO_COLOR`` or ``TERM=dumb`` says no."""
    return stream.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def as_terminal(trace: Trace, coloured: bool) -> str:
    """The text of ``repr(trace.report())``, coloured for a terminal."""
    text = repr(trace.report())
    return "\n".join(_painted(line) for line in text.splitlines()) if coloured else text


def _painted(line: str) -> str:
    if match := _HEAD.match(line):
        return f"{_paint(match[1], _BOLD, _COLOURS[match[1]])}{_paint(match[2], _BOLD)}"
    if match := _FIX.match(line):
        return f"{match[1]}{_paint(match[2], _COLOURS.get(match[2], _DIM))}{match[3]}{match[4]}"
    return _paint(line, _DIM) if line.startswith(("  at ", "  path:")) else line


def _paint(text: str, *codes: int) -> str:
    return f"\033[{';'.join(map(str, codes))}m{text}\033[0m"
