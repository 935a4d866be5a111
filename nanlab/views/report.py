"""The report of a trace: the culprit, its evidence, its path and its fixes, on one page."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd

from nanlab.trace.recording import PHASES
from nanlab.views import _finding, _losses
from nanlab.views._html import TINTS, badge, escape, fold, plural, sentence
from nanlab.views._static import gain_picture, steps_picture
from nanlab.views.tables import static_table

if TYPE_CHECKING:
    from nanlab.rules import Finding
    from nanlab.trace import Trace

ROWS = 15  # of each table in a fold; the tables themselves have all
OTHERS = 20  # further findings that are shown
PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width">
<title>nanlab report</title>
<style>
:root {{ color-scheme: light dark; }}
body {{ font: 14px/1.45 system-ui, "DejaVu Sans", sans-serif; margin: 1.5em auto; max-width: 1150px; padding: 0 1em;
  background: #fff; color: #111; }}
h1 {{ font-size: 15px; margin: 0; }}
@media (prefers-color-scheme: dark) {{ body {{ background: #141414; color: #eee; }} }}
</style></head><body><main><h1>nanlab report</h1>{body}</main></body></html>
"""


class Report:
    """What to look at after a watch: shows itself in a notebook and a terminal, and as a file of its own."""

    def __init__(self, trace: Trace) -> None:
        self._trace = trace

    def __repr__(self) -> str:
        parts = [self._part("verdict", lambda: [verdict_text(self._trace)])]
        parts += [self._part("losses", lambda: [_losses.line(self._trace)])]
        parts += [self._part("notes", lambda: [f"note: {note}" for note in notes(self._trace)])]
        return "\n".join(line for part in parts for line in part if line)

    def _repr_html_(self) -> str:
        sections: list[tuple[str, Callable[[Trace], str]]] = [
            ("verdict", verdict),
            ("culprit", culprit),
            ("small losses", _losses.small_section),
            ("other findings", others),
            ("steps", steps),
            ("backward pass", backward),
            ("operations", operations),
            ("parameters", parameters),
            ("notes", notes_html),
        ]
        parts = [self._section(name, make) for name, make in sections]
        return f'<div style="font-size:13px;line-height:1.45">{"".join(parts)}</div>'

    def _section(self, name: str, make: Callable[[Trace], str]) -> str:
        return "".join(self._part(name, lambda: [make(self._trace)], html=True))

    def _part(self, name: str, make: Callable[[], list[str]], html: bool = False) -> list[str]:
        """A part that fails becomes a note; the others are shown."""
        try:
            return make()
        except Exception as failure:
            told = f"the part '{name}' of the report failed ({type(failure).__name__}: {failure}); the others are shown"
            return [f"<div>{badge('note')} {escape(told)}</div>"] if html else [told]

    def to_html(self, path: str | Path) -> Path:
        """Write the report as one file that needs no network; the path written."""
        file = Path(path)
        file.write_text(PAGE.format(body=self._repr_html_()), encoding="utf-8")
        return file


def covered(trace: Trace) -> str:
    """What was watched: operations, also those of steps that were folded since, steps, phases, seconds."""
    ops, steps_ = trace.ops, trace.steps
    results = int(steps_["ops"].sum()) if "ops" in steps_ else len(ops)
    present = set(ops["phase"].astype(str))
    phases = [name for name in PHASES if name in present]
    seconds = float(steps_["seconds"].fillna(0).sum()) if "seconds" in steps_ and len(steps_) else 0.0
    parts = [plural(results, "operation result"), _steps(trace), ", ".join(phases)]
    return "; ".join(part for part in [*parts, f"{seconds:.3g} s" if seconds else ""] if part)


def _steps(trace: Trace) -> str:
    """How many training steps; turns of a loop without a backward pass and an optimizer are none."""
    frame = trace.steps
    if len(trace.backward) or frame["loss"].notna().any() or frame["optimizer_steps"].gt(0).any():
        return plural(len(frame), "training step")
    return "no training step" if len(frame) < 2 else f"{plural(len(frame), 'turn')} of a loop, no training step"


def verdict_text(trace: Trace) -> str:
    """The culprit for a terminal, or one line saying that there is none."""
    found = trace.culprit
    warnings = [f for f in trace.findings if f is not found]
    lines = [_finding.as_text(found)] if found is not None else [_healthy(trace)]
    lines += [f"{f.severity}: {f.title}  ({_finding.place(f)})" for f in warnings[:5]]
    return "\n".join(lines)


def _healthy(trace: Trace) -> str:
    if trace.recording.ended == "failed":
        return f"Incomplete: nanlab itself failed (see the note). No fault had shown before; watched: {covered(trace)}."
    if not len(trace.ops):
        return "Nothing was watched: no operation ran (those in other threads are not seen)."
    return f"No harmful NaN or infinity. Watched: {covered(trace)}."


def verdict(trace: Trace) -> str:
    """One sentence: what, where, which step."""
    found = trace.culprit
    if found is None:
        quiet = not trace.findings and not _losses.line(trace)
        mark = badge("healthy", "good") if quiet else badge("finite", "note")
        if trace.recording.ended == "failed":
            mark = badge("incomplete", "warning")
        return f'<div style="padding:6px 0">{mark} {escape(_healthy(trace))}</div>'
    told = f"{sentence(found.title, found.op or '')} ({escape(_finding.place(found))})."
    return (
        f'<div style="padding:6px 0;font-size:16px"><b>Culprit:</b> {told}'
        f'<div style="opacity:0.8;font-size:12px">Watched: {escape(covered(trace))}</div></div>'
    )


def culprit(trace: Trace) -> str:
    """The culprit's card, where signal was lost before it, evidence, path and fixes; of a healthy run the losses alone."""
    losses = _losses.great_section(trace)
    return _whole(trace.culprit, trace, losses) if trace.culprit is not None else losses


def _whole(found: Finding, trace: Trace, losses: str = "") -> str:
    """A finding under a heading that has said its title: its card, its fixes, what proves it."""
    parts = {
        "Fixes": _finding.fixes(found),
        "Evidence": _finding.evidence(found),
        "Path, from the origin to where it was seen": _finding.path(found),
        "Offending rows": _offending(found, trace),
    }
    return (
        _finding.card(found, trace, titled=False)
        + losses
        + "".join(_titled(name, html) for name, html in parts.items() if html)
    )


def _titled(name: str, html: str) -> str:
    return f'<div style="margin-top:8px"><div style="font-weight:600">{escape(name)}</div>{html}</div>'


def _offending(found: Finding, trace: Trace) -> str:
    """The rows of ``trace.ops`` along the path."""
    places = [p for p in (_position(station) for station in found.path) if p is not None][:10]
    if not places:
        return ""
    ops = trace.ops
    rows = ops[ops["position"].isin(places).to_numpy(dtype=bool)]
    return static_table(rows, "ops", trace, in_order=True) if len(rows) else ""


def _position(station: Any) -> int | None:
    value = station.get("position") if hasattr(station, "get") else getattr(station, "position", None)
    return None if value is None or pd.isna(value) else int(value)


def others(trace: Trace) -> str:
    """The findings besides the culprit, each in a fold."""
    found = trace.culprit
    rest = [each for each in trace.findings if each is not found]
    if not rest:
        return ""
    shown = "".join(
        fold(f"{each.severity.capitalize()}: {each.title} ({_finding.place(each)})", _whole(each, trace))
        for each in rest[:OTHERS]
    )
    more = f"<div>{plural(len(rest) - OTHERS, 'further finding')} in trace.findings</div>" if len(rest) > OTHERS else ""
    return _titled(plural(len(rest), "other finding") if found else plural(len(rest), "finding"), shown + more)


def steps(trace: Trace) -> str:
    """Loss, gradient norm, loss scale and skipped steps: a chart where there are two steps, and the table."""
    frame = trace.steps
    if not len(frame):
        return ""
    chart = steps_picture(frame) if len(frame) > 1 and _drawable(frame) else ""
    return (_titled("Training steps", chart) if chart else "") + fold(
        f"Table of {plural(len(frame), 'training step')}", static_table(frame, "steps", trace, most=ROWS, last=True)
    )


def _drawable(frame: pd.DataFrame) -> bool:
    names = [name for name in ("loss", "gradient_norm", "loss_scale") if name in frame]
    return any(bool(frame[name].notna().any()) for name in names)


def backward(trace: Trace) -> str:
    """The gradient along the last backward pass that is bad, else the last one, and its rows."""
    frame = trace.backward
    if not len(frame):
        return ""
    from nanlab.views._graph import BAD, passes, rows_of

    all_ = passes(frame)
    chosen = next((p for p in all_ if p["worst"] in BAD), all_[-1])
    rows = rows_of(frame, chosen["step"], chosen["backward_pass"])
    title = f"Backward pass of step {chosen['step']}: {plural(len(rows), 'node')}"
    return fold(title, gain_picture(rows) + static_table(rows, "backward", trace, most=ROWS))


def operations(trace: Trace) -> str:
    """The operations, the trouble on top."""
    if not len(trace.ops):
        return ""
    kept, all_ = len(trace.ops), int(trace.steps["ops"].sum()) if "ops" in trace.steps else 0
    title = f"{plural(kept, 'result')} kept of {all_:,}" if all_ > kept else plural(kept, "result")
    return fold(f"Operations: {title}", static_table(trace.ops, "ops", trace, most=ROWS))


def parameters(trace: Trace) -> str:
    """The parameters of the last steps."""
    frame = trace.parameters
    if not len(frame):
        return ""
    return fold(
        f"Parameters: {plural(len(frame), 'row')}", static_table(frame, "parameters", trace, most=ROWS, last=True)
    )


def notes(trace: Trace) -> list[str]:
    """What nanlab has to say of itself, its own failures above all."""
    return [str(note) for note in getattr(trace, "notes", [])]


def notes_html(trace: Trace) -> str:
    """The notes, one a line."""
    style = f"background:{TINTS['note']};border-radius:3px;padding:3px 10px;margin:6px 0"
    return "".join(f'<div style="{style}">nanlab: {escape(note)}</div>' for note in notes(trace))


def report(trace: Trace) -> Report:
    """Culprit, evidence, path, tried fixes and tables of a trace, on one page."""
    return Report(trace)
