"""An explanation of an exception, as HTML and as text."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pandas as pd

from nanlab.trace.op import location, module_name
from nanlab.views import card
from nanlab.views.columns import as_typed
from nanlab.views.html import data_table, ended, escape, inline, sentence
from nanlab.views.widget import style

if TYPE_CHECKING:
    from nanlab.explanations import Explanation

ROWS = 12  # of the evidence that are shown


def place(explanation: Explanation) -> str:
    """``train.py:41, in encoder.0``; unknown parts are left out."""
    module = f"in {module_name(explanation.module)}" if explanation.module else ""
    return ", ".join(
        part for part in (location(explanation.file, explanation.line), module) if part
    )


def to_change(explanation: Explanation) -> str:
    """``train.py:12:`` and the line there; "" if that is the line shown, or unknown."""
    if explanation.change is None:
        return ""
    file, line, source = explanation.change
    if line == explanation.line and file == explanation.file:
        return ""
    return f"{location(file, line)}: `{source}`" if "`" not in source else location(file, line)


def as_html(explanation: Explanation) -> str:
    """A card like that of a finding: place, title, line, explanation, evidence, fixes."""
    where = location(explanation.file, explanation.line)
    place_ = f'<code class="nl-place">{ended(where)}</code> ' if where else ""
    name = escape(module_name(explanation.module))
    module = f"in <code>{name}</code> · " if name else ""
    head = (
        f'<div class="nl-headline" role="heading" aria-level="2">{place_}'
        f"<b>{sentence(explanation.title)}</b></div>"
        f'<div class="nl-dim">{module}{escape(explanation.cause)}</div>'
    )
    lines = [(explanation.line, as_typed(explanation.source))] if explanation.source else []
    body = f'<p class="nl-prose">{sentence(explanation.explanation)}</p>'
    if changed := to_change(explanation):
        body += f"<div>Line to change, {inline(changed)}</div>"
    parts = [head, card.source_block(lines, explanation.line), body]
    parts += [_evidence(explanation.evidence), _fixes(explanation)]
    style_ = f"border-left:4px solid {card.EDGES['error']};padding-left:10px"
    return (
        f'<style>{style("report")}</style><div class="nanlab nl-report"><div class="nl-card'
        f' nl-error" style="{style_}">{"".join(parts)}</div></div>'
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
    heads = [str(name).replace("_", " ") for name in frame.columns]
    return data_table(heads, rows, aligns, caption)


def _text(value: object) -> str:
    return "–" if value is pd.NA or value is None else str(value)


def _fixes(explanation: Explanation) -> str:
    """The fixes; with a verdict if one was tried."""
    tried = any(fix.verdict != "untried" for fix in explanation.fixes)
    blocks = []
    for fix in explanation.fixes:
        tag = f"{card.verdict(fix)} " if tried else ""
        code = f'<pre class="nl-code nl-written" tabindex="0">{escape(fix.code)}</pre>'
        blocks.append(
            f'<div class="nl-fix"><div class="nl-fix-head">{tag}<span class="nl-fix-title">'
            f"{sentence(fix.title)}</span></div>{code if fix.code else ''}</div>"
        )
    return "".join(blocks)


def as_text(explanation: Explanation) -> str:
    lines = [explanation.title]
    where = place(explanation)
    lines += [f"  at {where}"] if where else []
    lines += [f"  line to change, {changed}"] if (changed := to_change(explanation)) else []
    lines += [f"    {explanation.source}"] if explanation.source else []
    lines += [f"  {explanation.explanation}"]
    if len(explanation.evidence):
        table_text = explanation.evidence.head(ROWS).to_string(index=False)
        lines += [f"    {line}" for line in table_text.splitlines()]
    for fix in explanation.fixes:
        outcome = f" ({fix.verdict})" if fix.verdict != "untried" else ""
        lines += [f"  fix{outcome}: {fix.title}", *(f"    {row}" for row in fix.code.splitlines())]
    return "\n".join(lines)
