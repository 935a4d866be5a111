"""An explanation of an exception, as HTML and as text."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pandas as pd

from nanlab.trace.locations import location
from nanlab.views._finding import CODE, WORDS, verdict
from nanlab.views._html import SHADE, TINTS, badge, code, escape, sentence, table
from nanlab.views._source import as_typed

if TYPE_CHECKING:
    from nanlab.rules.errors import Explanation

ROWS = 12  # of the evidence that are shown


def place(explanation: Explanation) -> str:
    """``train.py:41, in encoder.0``; what is not known is left out."""
    module = f"in {explanation.module}" if explanation.module else ""
    return ", ".join(
        part for part in (location(explanation.file, explanation.line), module) if part
    )


def to_change(explanation: Explanation) -> str:
    """``train.py:12: with torch.no_grad():``; empty where the line to change is the one shown, or
    not known."""
    if explanation.change is None:
        return ""
    file, line, source = explanation.change
    return (
        ""
        if line == explanation.line and file == explanation.file
        else f"{location(file, line)}: {source}"
    )


def as_html(explanation: Explanation) -> str:
    """The cause on a card, the line, the evidence, and what to write instead."""
    edge = TINTS["error"].replace("0.30", "0.85")
    head = (
        f'<div style="font-size:15px;font-weight:600">{sentence(explanation.title)}</div>'
        f"<div>{badge(explanation.cause, 'note')} {escape(place(explanation))}</div>"
    )
    line = (
        code([(explanation.line, as_typed(explanation.source))], explanation.line)
        if explanation.source
        else ""
    )
    body = f'<div style="margin:6px 0;max-width:75em">{sentence(explanation.explanation)}</div>'
    if changed := to_change(explanation):
        body += f"<div>Change {escape(changed)}</div>"
    style = f"border-left:4px solid {edge};padding:6px 12px;margin:6px 0;background:{SHADE}"
    parts = f"{_evidence(explanation.evidence)}{_fixes(explanation)}"
    return (
        '<div style="font-size:13px;line-height:1.45"><div'
        f' style="{style}">{head}{line}{body}</div>{parts}</div>'
    )


def _evidence(frame: pd.DataFrame) -> str:
    if not len(frame):
        return ""
    aligns = [
        "right" if pd.api.types.is_numeric_dtype(frame[name]) else "left" for name in frame.columns
    ]
    rows = [
        [escape(_text(value)) for value in row] for row in frame.head(ROWS).itertuples(index=False)
    ]
    caption = f"the first {ROWS} of {len(frame)} rows" if len(frame) > ROWS else ""
    return table([str(name).replace("_", " ") for name in frame.columns], rows, aligns, caption)


def _text(value: object) -> str:
    return "–" if value is pd.NA or value is None else str(value)


def _fixes(explanation: Explanation) -> str:
    if not explanation.fixes:
        return ""
    tried = any(fix.verdict != "untried" for fix in explanation.fixes)
    rows = []
    for fix in explanation.fixes:
        title = f'<div style="{WORDS}">{sentence(fix.title)}</div>'
        outcome = [badge(*verdict(fix))] if tried else []
        rows.append([*outcome, title, f'<div style="{CODE}">{escape(fix.code)}</div>'])
    heads = [*(["outcome"] if tried else []), "what to do", "write"]
    return table(heads, rows, ["left"] * len(heads))


def as_text(explanation: Explanation) -> str:
    """The explanation for a terminal."""
    lines = [explanation.title]
    where = place(explanation)
    lines += [f"  at {where}"] if where else []
    lines += [f"  change {changed}"] if (changed := to_change(explanation)) else []
    lines += [f"    {explanation.source}"] if explanation.source else []
    lines += [f"  {explanation.explanation}"]
    if len(explanation.evidence):
        table_text = explanation.evidence.head(ROWS).to_string(index=False)
        lines += [f"    {line}" for line in table_text.splitlines()]
    for fix in explanation.fixes:
        first, *rest = fix.code.splitlines() or [""]
        outcome = f" ({verdict(fix)[0]})" if fix.verdict != "untried" else ""
        lines += [f"  fix{outcome}: {fix.title}:  {first}", *(f"         {line}" for line in rest)]
    return "\n".join(lines)
