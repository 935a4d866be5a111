"""HTML that survives a notebook's sanitiser: inline styles, no scripts."""

from __future__ import annotations

import html
import math
from collections.abc import Iterable, Sequence
from functools import partial
from typing import Any

import pandas as pd

# Translucent, under inherited text colour: readable on a light and on a dark page.
TINTS = {
    "born": "rgba(229,57,53,0.30)",
    "turned": "rgba(194,24,160,0.28)",
    "carried": "rgba(245,124,0,0.26)",
    "healed": "rgba(0,151,167,0.24)",
    "intended": "rgba(92,107,192,0.26)",
    "error": "rgba(229,57,53,0.30)",
    "warning": "rgba(245,124,0,0.26)",
    "note": "rgba(92,107,192,0.22)",
    "good": "rgba(67,160,71,0.26)",
}
CODE = "font:0.95em monospace;background:none;color:inherit;padding:0"
LINE = "rgba(128,128,128,0.35)"
SHADE = "rgba(128,128,128,0.12)"
# JupyterLab sets each cell, so each cell says it
CELL = "padding:2px 9px;text-align:{align};white-space:nowrap"
# where a table is too wide, headings go before digits: they take two lines
HEAD = f"font-weight:600;border-bottom:1px solid {LINE};white-space:normal;vertical-align:bottom"
# styles of a table: what scrolls it, itself, its rows, its caption
INLINE = (
    ' style="overflow-x:auto"',
    ' style="border-collapse:collapse;margin:4px 0;font-variant-numeric:tabular-nums;'
    'font-size:12px"',
    ' style="background:transparent"',
    ' style="text-align:left;caption-side:top;padding:4px 0;opacity:0.8"',
)


def escape(text: object) -> str:
    """Text safe inside HTML, quotes too."""
    return html.escape(str(text), quote=True)


def inline(text: str) -> str:
    """Text safe inside HTML, with backticks as code."""
    parts = str(text).split("`")
    if len(parts) % 2 == 0:  # a backtick that is never closed is one
        return escape(text)
    made = (
        f'<code style="{CODE}">{escape(part)}</code>' if i % 2 else escape(part)
        for i, part in enumerate(parts)
    )
    return "".join(made)


def sentence(text: str, op: str = "") -> str:
    """The text with a capital and backticks as code; an operator at its start stays as code.

    op: the operator that the text is about.
    """
    first = text.split(" ", 1)[0]
    if op and first == op:
        return inline(f"`{first}`{text[len(first) :]}")
    return inline(capital(text))


def capital(text: str) -> str:
    """The text with a capital if it begins with a word: not x, nor nanlab.safe.sqrt."""
    word = text.split(" ", 1)[0].rstrip(",:;.").replace("-", "")
    plain = word.isalpha() and word.islower() and (len(word) > 1 or word == "a")
    return text[:1].upper() + text[1:] if plain else text


def tag(kind: str, word: str, title: str = "") -> str:
    """A word in a box of its colour; where style sheets are stripped, a word with a colon."""
    meaning = f' title="{escape(title)}"' if title else ""
    colon = '<span class="nl-plain">:</span>'
    return f'<span class="nl-tag nl-{kind}"{meaning}>{escape(word)}{colon}</span>'


LONGEST = 60  # characters of a place or of a name that a page shows whole


def near_end(text: str, most: int = LONGEST) -> str:
    """The end of a long path or dotted name, which tells it from others, after a "…"."""
    if len(text) <= most:
        return text
    end = text[1 - most :]
    return "…" + end[max(0, end.find("/")) :]


def ended(text: str, most: int = LONGEST) -> str:
    """The same as HTML, with the whole on hovering."""
    short = near_end(text, most)
    return escape(text) if short == text else f'<span title="{escape(text)}">{escape(short)}</span>'


def plural(count: int, word: str) -> str:
    """``plural(1200, "zero")`` is "1,200 zeros"."""
    return f"{count:,} {word}{'' if count == 1 else 's'}"


def number(value: Any) -> str:
    """A count with thousands separators, a float with three digits, "–" for no value."""
    if value is None or value is pd.NA:
        return "–"
    if isinstance(value, float):
        return _float(value)
    if isinstance(value, bool) or not hasattr(value, "__index__"):
        return _float(float(value)) if hasattr(value, "__float__") else str(value)
    return f"{int(value):,}"


def _float(value: float) -> str:
    if math.isnan(value):
        return "NaN"
    if value == 0 or math.isinf(value):
        return f"{value:g}"
    if not 0.9995e-3 <= abs(value) < 1e5:
        power = f"{value:.2e}".replace(".00e", "e").replace("e+", "e")
        return power.replace("e-0", "e-").replace("e0", "e")
    return f"{value:.3g}" if abs(value) < 999.5 else f"{value:,.0f}"


def badge(word: str, tint: str | None = None) -> str:
    """A word on a colour."""
    colour = TINTS.get(tint or word, SHADE)
    return (
        f'<span style="background:{colour};border-radius:3px;padding:0'
        f' 6px;white-space:nowrap">{escape(word)}</span>'
    )


def table(
    head: Sequence[str],
    rows: Iterable[Sequence[str]],
    aligns: Sequence[str],
    caption: str = "",
    sheet: bool = False,
) -> str:
    """A table of ready-made HTML cells; aligns: "left" or "right" for each column.

    sheet: styled by the report's style sheet, so that a cell costs its text and little more; else
    inline.
    """
    if sheet:
        cells = ["" if align == "left" else ' class="n"' for align in aligns]
        heads = [f' scope="col"{cell}' for cell in cells]
        wide, whole, line, told = ' class="nl-wide"', "", "", ""
    else:
        cells = [f' style="{CELL.format(align=align)}"' for align in aligns]
        heads = [f'{cell[:-1]};{HEAD}"' for cell in cells]
        wide, whole, line, told = INLINE
    names = (f"<th{a}>{escape(name)}</th>" for name, a in zip(head, heads, strict=True))
    body = "".join(
        f"<tr{line}>"
        + "".join(f"<td{a}>{content}</td>" for content, a in zip(row, cells, strict=True))
        + "</tr>"
        for row in rows
    )
    title = f"<caption{told}>{caption}</caption>" if caption else ""
    return (
        f'<div{wide} tabindex="0"><table{whole}>{title}<thead><tr{line}>{"".join(names)}</tr>'
        f"</thead><tbody>{body}</tbody></table></div>"
    )


data_table = partial(table, sheet=True)


def code(lines: Iterable[tuple[int, str]], marked: int) -> str:
    """Source lines with their numbers, one of them marked."""
    tint = f"background:{TINTS['error']};font-weight:600"
    shown = "".join(
        f'<div style="padding:0 8px;{tint if n == marked else ""}"><span'
        ' style="opacity:0.85;display:inline-block;width:4.5em">'
        f"{'→' if n == marked else ' '}&nbsp;{n}</span>{escape(text) or '&nbsp;'}</div>"
        for n, text in lines
    )
    return (
        '<div tabindex="0"'
        ' style="font-family:monospace;font-size:12px;white-space:pre;overflow-x:auto;border:1px'
        f' solid {LINE};border-radius:3px;padding:3px 0;margin:4px 0;line-height:1.5">{shown}</div>'
    )


def fold(title: str, body: str) -> str:
    """A part that opens on a click."""
    return (
        '<details style="margin:6px 0"><summary style="cursor:pointer;font-weight:600">'
        f"{escape(title)}</summary>{body}</details>"
    )
