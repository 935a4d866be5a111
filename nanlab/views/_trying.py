"""A fix, or the cure, tried on the recorded step: loss, gradients and parameters before and after,
side by side."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from nanlab.errors import NanlabError
from nanlab.views._html import escape, inline, number
from nanlab.views._remedy import CURE, cure_of, difference, reason_of
from nanlab.views._source import as_typed
from nanlab.views._tables import data_table

if TYPE_CHECKING:
    from nanlab.program.replay import Replay
    from nanlab.rules import Finding, Fix
    from nanlab.rules.cure import Cure
    from nanlab.trace import Trace

MOVED = 3  # gradients that moved most, of those that are finite both times


@dataclass(frozen=True)
class Attempt:
    """What the page asks to be tried: a fix of a finding, or the cure."""

    what: Fix | Cure
    finding: Finding


def attempt_of(trace: Trace, key: str) -> Attempt | None:
    """The fix or the cure of that name in the page: ``0.2``, ``cure``; None where there is none."""
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
    """What the step does with it, beside what it did; or why it cannot be run again."""
    step = attempt.finding.step if attempt.finding.step >= 0 else None
    cure = cure_of(trace)
    try:
        runs = [("as it ran", trace.replay(step=step))]
        name = "with the cure" if attempt.what is cure else "with the fix"
        runs.append((name, trace.replay(attempt.what, step=step)))
        if cure is not None and attempt.what is not cure and step == _step_of(trace):
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
        [f"gradient of <code>{escape(name)}</code>", "as it was", told, *blank]
        for name, told in _moved(before, after)
    ]
    number_ = attempt.finding.step if step is not None else after.step
    table = data_table(
        ["", *(name for name, _ in runs)],
        rows,
        ["left", *["right"] * len(runs)],
        f"Step {number_}, run again",
    )
    # the lines of the cure stand above already
    edits = () if attempt.what is cure else attempt.what.edits
    return table + _remarks(attempt, after) + difference(edits)


def _step_of(trace: Trace) -> int | None:
    return trace.culprit.step if trace.culprit is not None else None


def _remarks(attempt: Attempt, after: Replay) -> str:
    """What is missing where it is not verified, and where the program might have gone another
    way."""
    what = attempt.what
    told = [] if what.verdict == "verified" else [f"Verdict: {what.verdict}. {reason_of(what)}"]
    if after.looked_at:
        places = ", ".join(f"`{place}`" for place in after.looked_at[:3])
        more = len(after.looked_at) - 3
        told.append(
            f"The program read a value that is now another at {places}"
            f"{f' and {more} more' if more > 0 else ''}: it might have gone another way from there."
        )
    return "".join(f'<div class="nl-dim">{inline(text)}</div>' for text in told if text)


def edited(trace: Trace, attempt: Attempt) -> str:
    """The text of the cell of the finding with the edits; "" where it is not a cell, or there are
    none."""
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
    return f'<span class="nl-tag nl-fails">{"NaN" if math.isnan(value) else number(value)}</span>'


def _largest(tensors: dict[str, torch.Tensor]) -> str:
    """The largest magnitude, and whose it is; NaN before an infinity, and that before a number."""
    found = [(_size(t), name) for name, t in tensors.items() if t.numel()]
    if not found:
        return "–"
    value, name = max(found, key=lambda each: (math.isnan(each[0]), each[0]))
    return f"{_shown(value)} <code>{escape(name)}</code>"


def _size(tensor: torch.Tensor) -> float:
    return float(tensor.detach().abs().max())


def _bad(tensors: dict[str, torch.Tensor]) -> str:
    bad = sum(not _finite(t) for t in tensors.values())
    return (
        f'<span class="nl-tag nl-fails">{bad} of {len(tensors)}</span>'
        if bad
        else f"none of {len(tensors)}"
    )


def _finite(tensor: torch.Tensor) -> bool:
    return bool(torch.isfinite(tensor.detach()).all())


def _moved(before: Replay, after: Replay) -> list[tuple[str, str]]:
    """The gradients that were finite and moved most."""
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
