"""A fix tried on the recorded step: loss, gradients and parameters before and after, side by
side."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import torch

from nanlab.errors import NanlabError
from nanlab.trace.locations import location
from nanlab.views._html import escape, number
from nanlab.views._source import as_typed
from nanlab.views._tables import data_table

if TYPE_CHECKING:
    from nanlab.program.replay import Replay
    from nanlab.rules import Finding
    from nanlab.trace import Trace

MOVED = 3  # gradients that moved most, of those that are finite both times


def tried(trace: Trace, finding: Finding, number_of_fix: int) -> str:
    """What the step does with a fix; or why it cannot be run again."""
    fix = finding.fixes[number_of_fix]
    try:
        before = trace.replay(step=finding.step)
        after = trace.replay(fix=fix, step=finding.step)
    except NanlabError as reason:
        return f'<div class="nl-dim">Not tried: {escape(reason)}</div>'
    rows = [
        ["loss", _loss(before), _loss(after)],
        ["largest gradient", *(_largest(each.gradients) for each in (before, after))],
        ["gradients not finite", *(_bad(each.gradients) for each in (before, after))],
        ["parameters not finite", *(_bad(each.parameters) for each in (before, after))],
    ]
    rows += [
        [f"gradient of <code>{escape(name)}</code>", "as it was", told]
        for name, told in _moved(before, after)
    ]
    looked = after.looked_at
    warning = (
        '<div class="nl-dim">The program read a value that is now another at'
        f" {escape(', '.join(looked[:3]))}.</div>"
    )
    table = data_table(
        ["", "as it ran", "with the fix"],
        rows,
        ["left", "right", "right"],
        f"Step {after.step}, run again",
    )
    return table + (warning if looked else "") + _difference(fix)


def _difference(fix: Any) -> str:
    """The edits as a difference, with the whole of the new lines for a cell."""
    if not fix.edits:
        return ""
    places = ", ".join(location(edit.file, edit.first) for edit in fix.edits)
    return (
        '<pre class="nl-code nl-diff" tabindex="0" aria-label="Edits at'
        f' {escape(places)}">{escape(fix.diff())}</pre>'
    )


def edited(trace: Trace, finding: Finding, number_of_fix: int) -> str:
    """The text of the cell or file of the finding with the edits of a fix; "" where it is not known
    or has none."""
    edits = [edit for edit in finding.fixes[number_of_fix].edits if edit.file == finding.file]
    if not edits or not finding.file.startswith("In["):
        return ""
    lines = dict(trace.source(finding.file, 1, 100_000))
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
    """The largest finite magnitude, and whose it is."""
    found = [
        (float(t.detach().abs().max()), name)
        for name, t in tensors.items()
        if t.numel() and _finite(t)
    ]
    if not found:
        return "–"
    value, name = max(found)
    return f"{number(value)} <code>{escape(name)}</code>"


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
