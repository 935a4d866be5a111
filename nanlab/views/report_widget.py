"""The report as a widget: trying a fix on the step, tracing a number back."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
import traitlets
from IPython.core.getipython import get_ipython
from IPython.display import display

from nanlab.errors import NanlabError
from nanlab.program.replay import Replay
from nanlab.program.rerun import step_that_shows
from nanlab.rules import Finding, Fix
from nanlab.rules.cure import Cure
from nanlab.trace import Place, Trace
from nanlab.views import details
from nanlab.views.card import CURE, INTERRUPTED, cure_of, difference, reason_of
from nanlab.views.charts import WHOLE, minimap, position_at
from nanlab.views.columns import as_typed
from nanlab.views.details import whence
from nanlab.views.html import data_table, ended, escape, inline, number
from nanlab.views.text import as_issue, first_of, is_tried, reproduction_of
from nanlab.views.widget import View, script, style

if TYPE_CHECKING:
    from nanlab.views.report import Report

MOVED = 3  # gradients that moved most, of those that are finite both times


@dataclass(frozen=True)
class Attempt:
    """A fix or the cure that the page asks to try."""

    what: Fix | Cure
    finding: Finding


def attempt_of(trace: Trace, key: str) -> Attempt | None:
    """The fix or cure by its name in the page, ``0.2`` or ``cure``; None if unknown."""
    if key == CURE:
        cure, culprit = trace.cure, trace.culprit
        return Attempt(cure, culprit) if cure is not None and culprit is not None else None
    which, _, fix = key.partition(".")
    try:
        finding = trace.findings[int(which)]
        return Attempt(finding.fixes[int(fix)], finding)
    except (ValueError, IndexError):
        return None


def tried(trace: Trace, attempt: Attempt) -> str:
    """The step with the fix beside the step as it ran; or why it cannot be replayed."""
    finding, first = attempt.finding, trace.recording.first_step
    shown = step_that_shows(trace.recording, finding.step - first, finding)
    step = shown + first if shown >= 0 else None
    cure, culprit = cure_of(trace), trace.culprit
    try:
        runs = [("as it ran", trace.replay(step=step))]
        name = "with the cure" if attempt.what is cure else "with the fix"
        runs.append((name, trace.replay(attempt.what, step=step)))
        if cure and culprit and attempt.what is not cure and finding.step == culprit.step:
            runs.append(("with all edits of the cure", trace.replay(cure, step=step)))
    except NanlabError as reason:
        return f'<div class="nl-dim">Not tried: {escape(reason)}</div>'
    before, after = runs[0][1], runs[1][1]
    each = [run for _, run in runs]
    rows = [
        ["loss", *map(_loss, each)],
        ["largest gradient", *(_largest(run.gradients) for run in each)],
        ["gradients not finite", *(_bad(run.gradients) for run in each)],
        ["parameters not finite", *(_bad(run.parameters) for run in each)],
    ]
    blank = [""] * (len(runs) - 2)
    rows += [
        [f"gradient of <code>{ended(name)}</code>", "as it was", told, *blank]
        for name, told in _moved(before, after)
    ]
    table = data_table(
        ["", *(name for name, _ in runs)],
        rows,
        ["left", *["right"] * len(runs)],
        f"Step {after.step}, run again",
    )
    # the lines of the cure stand above already
    edits = () if attempt.what is cure else attempt.what.tried
    return table + _remarks(attempt, after) + difference(edits)


def _remarks(attempt: Attempt, after: Replay) -> str:
    """Why it is not verified, and where the program might take another branch."""
    what = attempt.what
    told = [] if what.verdict == "verified" else [f"Verdict: {what.verdict}. {reason_of(what)}"]
    if after.looked_at:
        places = ", ".join(f"`{place}`" for place in after.looked_at[:3])
        more = len(after.looked_at) - 3
        told.append(
            f"The program read a value that has changed at {places}"
            f"{f' and {more} more' if more > 0 else ''}: it might have taken another branch there."
        )
    return "".join(f'<div class="nl-dim">{inline(text)}</div>' for text in told if text)


def edited(trace: Trace, attempt: Attempt) -> str:
    """The finding's cell with the edits; "" without a cell or edits."""
    file = attempt.finding.file
    edits = [edit for edit in attempt.what.edits if edit.file == file]
    if not edits or not file.startswith("In["):
        return ""
    lines = dict(trace.source(file, 1, 100_000))
    for edit in sorted(edits, key=lambda each: -each.first):
        for n in range(edit.first, edit.last + 1):
            lines.pop(n, None)
        lines[edit.first] = "\n".join(edit.rows())
    return "\n".join(as_typed(text) for _, text in sorted(lines.items())).rstrip() + "\n"


def _loss(replay: Replay) -> str:
    return "–" if replay.loss is None else _shown(replay.loss)


def _shown(value: float) -> str:
    if math.isfinite(value):
        return number(value)
    return f'<span class="nl-tag nl-fails">{number(value)}</span>'


def _largest(tensors: dict[str, torch.Tensor]) -> str:
    """The largest magnitude and its name; NaN counts above infinity."""
    found = [(_size(t), name) for name, t in tensors.items() if t.numel()]
    if not found:
        return "–"
    value, name = max(found, key=lambda each: (math.isnan(each[0]), each[0]))
    return f"{_shown(value)} <code>{ended(name, 32)}</code>"


def _size(tensor: torch.Tensor) -> float:
    return float(tensor.detach().abs().max())


def _bad(tensors: dict[str, torch.Tensor]) -> str:
    bad = sum(not _finite(t) for t in tensors.values())
    if bad:
        return f'<span class="nl-tag nl-fails">{bad} of {len(tensors)}</span>'
    return f"none of {len(tensors)}"


def _finite(tensor: torch.Tensor) -> bool:
    return bool(torch.isfinite(tensor.detach()).all())


def _moved(before: Replay, after: Replay) -> list[tuple[str, str]]:
    """The finite gradients that changed most."""
    found = []
    for name, old in before.gradients.items():
        new = after.gradients.get(name)
        if (
            new is None
            or new.shape != old.shape
            or not (_finite(old) and _finite(new))
            or not old.numel()
        ):
            continue
        size = float(old.detach().double().norm())
        change = float((new.detach().double() - old.detach().double()).norm())
        if change:
            found.append((change / size if size else math.inf, name))
    ranked = sorted(found, reverse=True)[:MOVED]
    return [
        (name, "was zero" if math.isinf(share) else f"moved by {100 * share:.2g} %")
        for share, name in ranked
    ]


# The report as a widget: its code is clicked, its fixes are copied, and it follows the
# selection of the trace.


class ReportView(View):
    """The report in a live notebook."""

    _esm = script("report")
    _css = style("report")

    fresh = traitlets.Bool(True).tag(sync=True)  # whether no page has shown it yet
    html = traitlets.Unicode().tag(sync=True)
    issue = traitlets.Unicode().tag(sync=True)  # the finding as the text of an issue
    selected = traitlets.Int(-1).tag(sync=True)  # position of the selected row of ``trace.ops``
    place = traitlets.Unicode().tag(sync=True)  # its line, as the page knows it
    # what to try, as the page names it, and how often the page has asked
    asked = traitlets.List(["", 0]).tag(sync=True)
    heard = traitlets.Int(0).tag(sync=True)  # the last of these that the kernel got
    # of the last one: key, html, cell (its text with the edits)
    tried = traitlets.Dict().tag(sync=True)
    line = traitlets.Unicode().tag(sync=True)  # the operations of that line, as HTML
    # position and which element of a number that was clicked, and how often
    clicked = traitlets.List([-1, "", 0]).tag(sync=True)
    whence = traitlets.Unicode().tag(sync=True)  # where it came from, as HTML
    # part of the minimap that is shown: left, right, top, bottom, as shares of the whole
    window = traitlets.List(list(WHOLE)).tag(sync=True)
    minimap = traitlets.Unicode().tag(sync=True)  # that part, as HTML
    # point of the minimap that was clicked: across, down, and how often
    pointed = traitlets.List([0.0, 0.0, 0]).tag(sync=True)

    def __init__(self, report: Report) -> None:
        self._report = report
        self._trace = report.trace
        self._waits = not is_tried(self._trace)  # for the fixes to be tried
        html = report.early() if self._waits else report.body()
        super().__init__(html=html, **self._shown(self._trace.at))
        if not self._waits:
            self.issue = self._issue()
        self.observe(lambda change: self._select(), "selected")
        self.observe(lambda change: self._try(), "asked")
        self.observe(lambda change: self._trace_back(), "clicked")
        self.observe(lambda change: self._enlarge(), "window")
        self.observe(lambda change: self._point(), "pointed")
        self._trace.selection.follow(self._follow)

    def _ipython_display_(self) -> None:
        handle = self.show()
        if not self._waits:
            return
        # the card is on the screen by now; its fixes take a moment
        try:
            html, issue = self._report.body(), self._issue()
        except KeyboardInterrupt:
            self.html = self._report.early(INTERRUPTED)
            return
        self._waits = False
        with self.hold_sync():
            self.html, self.issue = html, issue
        handle.update(self._summary(), raw=True)

    def _try(self) -> None:
        """Replay the step with the fix that the page asked for."""
        key, count = self.asked
        self.heard = int(str(count))
        try:
            attempt = attempt_of(self._trace, str(key))
            if attempt is None:
                return
            told = {"html": tried(self._trace, attempt), "cell": edited(self._trace, attempt)}
        except Exception as failure:  # ours: the page is told, the kernel goes on
            told = {"html": _failed("trying it", failure), "cell": ""}
        self.tried = {"key": str(key), "count": count, **told}

    def _trace_back(self) -> None:
        position, which, _ = self.clicked
        try:
            self.whence = whence(self._trace, int(str(position)), str(which))
        except Exception as failure:  # ours: the page is told, the kernel goes on
            self.whence = _failed("tracing it back", failure)

    def _enlarge(self) -> None:
        self.minimap = minimap(self._trace, [float(str(share)) for share in self.window])

    def _point(self) -> None:
        """Select the result under a point of the minimap."""
        across, down, _ = (float(str(each)) for each in self.pointed)
        position = position_at(self._trace, across, down)
        if position is not None:
            self._trace.at = position

    def _issue(self) -> str:
        found = first_of(self._trace)
        if found is None:
            return ""
        return as_issue(self._trace, found, reproduction_of(self._trace, found))

    def _shown(self, place: Place | None) -> dict[str, Any]:
        if place is None:
            return {}
        told = details.line_of(self._trace, position=int(place))
        return {"selected": int(place), "place": f"{place.file}:{place.line}", "line": told}

    def _select(self) -> None:
        if self.selected != self._trace.at:
            self._trace.at = self.selected

    def _follow(self, place: Place) -> None:
        with self.hold_sync():
            for name, value in self._shown(place).items():
                setattr(self, name, value)

    def static_html(self) -> str:
        """The report for a page without widgets."""
        return f"<style>{style('report')}</style>{self.html}"

    def static_text(self) -> str:
        """The report as text; before the fixes were tried, title and place."""
        return str(self._trace.culprit or "") if self._waits else repr(self._report)


def _failed(what: str, failure: Exception) -> str:
    text = f"{what} failed ({type(failure).__name__}: {failure})"
    return f'<div class="nl-note">{escape(text)}</div>'


def show(report: Report) -> None:
    """Display a report, as a widget if the front end can show one."""
    shell = get_ipython()
    if getattr(shell, "kernel", None) is not None:
        ReportView(report)._ipython_display_()
        return
    display({"text/html": report._repr_html_(), "text/plain": repr(report)}, raw=True)
