"""The user's code, annotated with each line's results in a step and the bad ones among them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import pandas as pd

from nanlab.analysis.precision import add_histograms
from nanlab.rules import Finding
from nanlab.trace import Trace
from nanlab.trace.op import location
from nanlab.views.charts import span_of, strip
from nanlab.views.columns import BAD, as_typed, bad_counts, severity
from nanlab.views.html import ended, escape, plural

FILES = 3  # that are shown, the culprit's first
WHOLE = 60  # lines up to which a cell or file is shown from its first to its last
AROUND = 2  # lines shown beside one that ran
MOST = 120  # lines in all
SAMPLED = 8  # results of a line whose exponents are added up
WITH_STRIPS = 400  # results whose exponents are read in all


@dataclass
class SourceLine:
    """A source line and its results."""

    number: int
    text: str
    place: str = ""  # as the page knows it
    position: int = -1  # of the row that a click selects; -1: nothing ran here
    status: str = ""  # worst of its rows; "" where nothing is bad
    # NaN, and infinities that were not meant, in its forward results; where it has none of them,
    # in its gradients
    bad: int = 0
    backward: bool = False  # whether it is in the gradients only
    poisons: int = 0  # the next line of the path
    note: str = ""  # why an infinity healed
    strip: str = ""
    gap: int = 0  # lines left out before it


@dataclass
class SourceFile:
    """A file or a cell."""

    name: str
    lines: list[SourceLine] = field(default_factory=list)


def annotated(trace: Trace, finding: Finding | None = None) -> list[SourceFile]:
    """The program's lines in the finding's step, else the last; the finding's file first."""
    rows = _rows_of_step(trace, finding)
    if not len(rows):
        return []
    counts = rows.groupby("file", observed=True)["line"].count().sort_values(ascending=False)
    names = [name for name in counts.index.tolist() if name]
    if finding is not None and finding.file in names:
        names = [finding.file, *(name for name in names if name != finding.file)]
    path = _next_lines(finding)
    made, left, budget = [], MOST, [WITH_STRIPS]
    for name in names[:FILES]:
        lines = list(_lines(trace, str(name), rows[rows["file"] == name], finding, path, budget))[
            :left
        ]
        left -= len(lines)
        made += [SourceFile(str(name), lines)] if lines else []
    return made


def _rows_of_step(trace: Trace, finding: Finding | None) -> pd.DataFrame:
    ops = trace.ops
    steps = ops["step"]
    step = int(steps.max()) if len(ops) else 0
    if finding is not None and (steps == finding.step).any():
        step = finding.step
    chosen = ((steps == step) & (ops["file"] != "")).to_numpy(dtype=bool)
    return ops[chosen]


def _next_lines(finding: Finding | None) -> dict[tuple[str, int], int]:
    """The next line on the finding's path after each one, in the same file."""
    stations = [
        (str(s.get("file")), int(s.get("line") or 0)) for s in (finding.path if finding else [])
    ]
    found: dict[tuple[str, int], int] = {}
    for (file, line), (next_file, next_line) in pairwise(stations):
        if file and file == next_file and line != next_line:
            found.setdefault((file, line), next_line)
    return found


def _lines(
    trace: Trace,
    file: str,
    rows: pd.DataFrame,
    finding: Finding | None,
    path: dict[tuple[str, int], int],
    budget: list[int],
) -> Iterator[SourceLine]:
    by_line = {int(str(line)): group for line, group in rows.groupby("line") if int(str(line)) > 0}
    texts = _texts(trace, file, by_line)
    culprit = finding.line if finding is not None and finding.file == file else 0
    wanted = _wanted(texts, {*by_line, culprit} - {0})
    before = 0
    for number in wanted:
        line = SourceLine(
            number, texts[number], f"{file}:{number}", gap=number - before - 1 if before else 0
        )
        before = number
        if number in by_line:
            _describe(trace, line, by_line[number], budget)
        if number == culprit and finding is not None:
            line.status = "culprit"
            line.position = finding.position if finding.position >= 0 else line.position
        line.poisons = path.get((file, number), 0)
        yield line


def _texts(trace: Trace, file: str, by_line: dict[int, pd.DataFrame]) -> dict[int, str]:
    """The known text of the file's lines, without blank lines at the ends."""
    first, last = min(by_line), max(by_line)
    middle = (first + last) // 2
    known = dict(trace.source(file, middle, last - middle + 40))
    texts = {n: as_typed(text) for n, text in known.items() if n <= last + AROUND or text.strip()}
    for number, rows in by_line.items():
        if not texts.get(number, "").strip():
            texts[number] = as_typed(str(rows["source"].iloc[0] or ""))
    low = first - AROUND if len(texts) > WHOLE or not file.startswith("In[") else 1
    shown = {n: text for n, text in texts.items() if n >= low}
    while shown and not shown[max(shown)].strip():
        del shown[max(shown)]
    return dict(sorted(shown.items()))


def _wanted(texts: dict[int, str], ran: set[int]) -> list[int]:
    if len(texts) <= WHOLE:
        return list(texts)
    return [n for n in texts if any(abs(n - line) <= AROUND for line in ran)]


def _describe(trace: Trace, line: SourceLine, rows: pd.DataFrame, budget: list[int]) -> None:
    statuses = rows["status"].astype(str)
    worst = min(statuses, key=severity)
    at = rows[(statuses == worst).to_numpy(dtype=bool)].iloc[0]
    line.position = int(at["position"])
    line.status = worst if worst in (*BAD, "healed") else ""
    forward = rows[(rows["phase"] != "backward").to_numpy(dtype=bool)]
    backward = rows[(rows["phase"] == "backward").to_numpy(dtype=bool)]
    meant = (forward["status"].astype(str) == "intended").to_numpy(dtype=bool)
    line.bad = int(bad_counts(forward[~meant]).max(initial=0))
    if not line.bad:
        line.bad, line.backward = int(bad_counts(backward).max(initial=0)), True
    if worst == "healed":
        line.note = f"{at['op']} makes it finite"
    up, down = (_exponents(trace, part, budget) for part in (forward, backward))
    spans = [
        f"{name} {span_of(found)}"
        for name, found in (("forward", up), ("backward", down))
        if span_of(found)
    ]
    line.strip = strip(up, down, "exponents: " + "; ".join(spans)) if spans else ""


def _exponents(trace: Trace, rows: pd.DataFrame, budget: list[int]) -> pd.Series[int] | None:
    """The exponents of a line's results, added up; of the first ones if there are many."""
    places = [int(p) for p in rows["position"][: min(SAMPLED, budget[0])]]
    budget[0] -= len(places)
    counted = (trace.histogram(place, replays=False) for place in places)
    return add_histograms(counted) if places else None


def as_html(files: list[SourceFile]) -> str:
    """The lines with their gutter; numbered plain text where style sheets are stripped."""
    parts = []
    for file in files:
        parts.append(f'<div class="nl-file">{ended(location(file.name, "").rstrip(":"), 70)}</div>')
        parts += [_line_html(line) for line in file.lines]
    return (
        '<div class="nl-lines" tabindex="0"'
        f' style="white-space:pre;font-family:monospace">{"".join(parts)}</div>'
    )


def _line_html(line: SourceLine) -> str:
    gap = f'<div class="nl-gap">⋯ {plural(line.gap, "line")}</div>' if line.gap else ""
    kind = f" nl-is-{line.status}" if line.status else ""
    ran = "" if line.position >= 0 else " nl-idle"
    tint = ' style="background:rgba(229,57,53,0.22)"' if line.status == "culprit" else ""
    told = "".join(f" <span>{escape(text)}</span>" for text in _remarks(line))
    about = f'<span class="nl-remark">{told}</span>' if told else ""
    at = f' data-position="{line.position}"' if line.position >= 0 else ""
    meaning = f' title="{_TOLD[line.status]}"' if line.status in _TOLD else ""
    return (
        f'{gap}<div class="nl-line{kind}{ran}" data-place="{escape(line.place)}"{at}{tint}>'
        f'<span class="nl-no">{line.number:>4} </span><span'
        f' class="nl-mark"{meaning}>{_MARKS.get(line.status, " ")}</span><span'
        f' class="nl-strip-at">{line.strip}</span><span'
        f' class="nl-text">{escape(line.text) or " "}</span>{about}</div>'
    )


_MARKS = {"culprit": "●", "born": "●", "turned": "●", "carried": "•", "healed": "✓"}
_TOLD = {
    "culprit": "it began here",
    "born": "a NaN or an infinity was born here",
    "turned": "an infinity became NaN here",
    "carried": "a bad value came in",
    "healed": "a bad value came in, a finite one left",
}


def _remarks(line: SourceLine) -> list[str]:
    found = []
    if line.status == "culprit":
        found.append("began here")
    if line.bad and line.status in (*BAD, "culprit"):
        found.append(f"{line.bad:,} bad" + (" in its gradient" if line.backward else ""))
    if line.note:
        found.append(line.note)
    if line.poisons:
        found.append(f"→ line {line.poisons}")
    return found


def path_by_line(finding: Finding) -> list[dict[str, Any]]:
    """The path of a finding by line: file, line, phase, ops, nonfinite, position."""
    folded: list[dict[str, Any]] = []
    for station in finding.path:
        # parts of what was read, their own stations come before
        if station.get("op") == "snapshot":
            continue
        key = {name: station.get(name) for name in ("file", "line", "phase")}
        if not folded or any(folded[-1][name] != value for name, value in key.items()):
            first = {name: station.get(name) for name in ("position", "module")}
            folded.append(key | first | {"ops": []})
        folded[-1]["ops"].append(station.get("op"))
        folded[-1]["nonfinite"] = station.get("nonfinite")
    return folded
