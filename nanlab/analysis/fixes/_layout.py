"""An expression that reaches over several lines, on one."""

from __future__ import annotations

import io
import tokenize

_OPENING, _CLOSING = ("(", "[", "{"), (")", "]", "}", ".", ",")


def on_one_line(text: str) -> str:
    """The text of an expression without its line breaks and comments; as it is where a string
    reaches over lines."""
    if "\n" not in text:
        return text
    try:
        tokens = list(tokenize.generate_tokens(io.StringIO(f"({text}\n)").readline))
    except (tokenize.TokenError, SyntaxError):
        return text
    if any(t.type == tokenize.STRING and t.start[0] != t.end[0] for t in tokens):
        return text
    comments = {t.start[0]: t.start[1] for t in tokens if t.type == tokenize.COMMENT}
    rows = [row[: comments.get(i)].strip() for i, row in enumerate(f"({text}".split("\n"), 1)]
    joined = ""
    for row in rows:
        close = not row or joined.endswith(_OPENING) or row.startswith(_CLOSING)
        joined += row if close or not joined else f" {row}"
    return joined.removeprefix("(")
