"""Tables of the report: their style is in its style sheet, so that a cell costs its text and little
more."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from nanlab.views._html import escape


def data_table(
    head: Sequence[str], rows: Iterable[Sequence[str]], aligns: Sequence[str], caption: str = ""
) -> str:
    """A table of ready-made HTML cells; aligns: "left" or "right" for each column."""
    classes = ["" if align == "left" else ' class="n"' for align in aligns]
    heads = "".join(
        f'<th scope="col"{c}>{escape(name)}</th>' for name, c in zip(head, classes, strict=True)
    )
    body = "".join(
        "<tr>"
        + "".join(f"<td{c}>{text}</td>" for text, c in zip(row, classes, strict=True))
        + "</tr>"
        for row in rows
    )
    title = f"<caption>{caption}</caption>" if caption else ""
    return (
        f'<div class="nl-wide" tabindex="0"><table>{title}<thead><tr>{heads}</tr></thead>'
        f"<tbody>{body}</tbody></table></div>"
    )
