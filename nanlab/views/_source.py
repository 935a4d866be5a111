"""The user's source lines as they were typed."""

from __future__ import annotations

import ast
import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from nanlab.trace import Trace

# What IPython makes of a line that is not Python (its input transformer, since IPython 7).
_TRANSFORMED = re.compile(
    r"(?P<before>.*?)get_ipython\(\)\.(?P<method>run_line_magic|system|getoutput)\((?P<arguments>.*)\)\s*$"
)
OUR_MAGIC, TYPED_AS = "_nanwatch_cell", "%%nanwatch"


def excerpt(trace: Trace, file: str, line: int, context: int = 2) -> list[tuple[int, str]]:
    """(number, text) of a line and those around it, blank lines and magics as typed; empty where no
    text is known."""
    found = dict(trace.source(file, int(line), context))
    if not any(text.strip() for text in found.values()):
        return []
    return [
        (n, as_typed(found.get(n, ""))) for n in range(max(1, int(line) - context), max(found) + 1)
    ]


def as_typed(text: str) -> str:
    """A source line of a cell with its magic as the user wrote it: IPython runs, and remembers, a
    function call."""
    match = _TRANSFORMED.match(text)
    if match is None:
        return text
    try:
        arguments = ast.literal_eval(f"({match['arguments']},)")
    except (SyntaxError, ValueError):
        return text
    words = [str(each) for each in arguments]
    if match["method"] == "run_line_magic":
        name = TYPED_AS if words[0] == OUR_MAGIC else f"%{words[0]}"
        words = [name, *words[1:]]
    else:
        double = match["method"] == "getoutput" and not match["before"].rstrip().endswith("=")
        words = [f"{'!!' if double else '!'}{words[0]}", *words[1:]]
    return match["before"] + " ".join(word for word in words if word)
