"""An explanation of an exception, as HTML and as text."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pandas as pd

from nanlab.views._html import SHADE, TINTS, badge, code, escape, table

if TYPE_CHECKING:
    from nanlab.rules.errors import Explanation

ROWS = 12  # of the evidence that are shown


def place(explanation: Explanation) -> str:
    """``train.py:41, in encoder.0``; what is not known is left out."""
    where = f"{explanation.file}:{explanation.line}" if explanation.file else ""
    module = f"in {explanation.module}" if explanation.module else ""
    return ", ".join(part for part in (where, module) if part)


def as_html(explanation: Explanation) -> str:
    """The cause on a card, the line, the evidence, and what to write instead."""
    edge = TINTS["error"].replace("0.30", "0.85")
    head = (
        f'<div style="font-size:15px;font-weight:600">{escape(explanation.title)}</div>'
        f"<div>{badge(explanation.cause, 'note')} {escape(place(explanation))}</div>"
    )
    line = code([(explanation.line, explanation.source)], explanation.line) if explanation.source else ""
    body = f'<div style="margin:6px 0;max-width:75em">{escape(explanation.explanation)}</div>'
    style = f"border-left:4px solid {edge};padding:6px 12px;margin:6px 0;background:{SHADE}"
    parts = f"{_evidence(explanation.evidence)}{_fixes(explanation)}"
    return f'<div style="font-size:13px;line-height:1.45"><div style="{style}">{head}{line}{body}</div>{parts}</div>'


def _evidence(frame: pd.DataFrame) -> str:
    if not len(frame):
        return ""
    aligns = ["right" if pd.api.types.is_numeric_dtype(frame[name]) else "left" for name in frame.columns]
    rows = [[escape(_text(value)) for value in row] for row in frame.head(ROWS).itertuples(index=False)]
    caption = f"the first {ROWS} of {len(frame)} rows" if len(frame) > ROWS else ""
    return table([str(name).replace("_", " ") for name in frame.columns], rows, aligns, caption)


def _text(value: object) -> str:
    return "–" if value is pd.NA or value is None else str(value)


def _fixes(explanation: Explanation) -> str:
    if not explanation.fixes:
        return ""
    rows = [
        [escape(fix.title), f'<code style="white-space:pre;background:none">{escape(fix.code)}</code>']
        for fix in explanation.fixes
    ]
    return table(["what to do", "write"], rows, ["left", "left"])


def as_text(explanation: Explanation) -> str:
    """The explanation for a terminal."""
    lines = [explanation.title]
    where = place(explanation)
    lines += [f"  at {where}"] if where else []
    lines += [f"    {explanation.source}"] if explanation.source else []
    lines += [f"  {explanation.explanation}"]
    if len(explanation.evidence):
        table_text = explanation.evidence.head(ROWS).to_string(index=False)
        lines += [f"    {line}" for line in table_text.splitlines()]
    for fix in explanation.fixes:
        first, *rest = fix.code.splitlines() or [""]
        lines += [f"  fix: {fix.title}:  {first}", *(f"         {line}" for line in rest)]
    return "\n".join(lines)
