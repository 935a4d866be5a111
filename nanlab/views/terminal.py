"""A report for the terminal: its text, in colour where the terminal has any."""

from __future__ import annotations

import os
import re
from typing import IO, TYPE_CHECKING

if TYPE_CHECKING:
    from nanlab.trace import Trace

_COLOURS = {
    "error": 31,
    "warning": 33,
    "note": 36,
    "verified": 32,
    "fails": 31,
    "finite": 33,
    "untried": 36,
}
_BOLD, _DIM = 1, 2
_HEAD = re.compile(r"^(error|warning|note)(: .*)$")
_FIX = re.compile(r"^(  fix \()(\w+)([^)]*\))(.*)$")


def is_coloured(stream: IO[str]) -> bool:
    """Whether to write in colour: to a terminal, unless the environment says no (``NO_COLOR``,
    ``TERM=dumb``)."""
    return stream.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def as_terminal(trace: Trace, coloured: bool) -> str:
    """The report as text; the words are those of ``repr(trace.report())``."""
    text = repr(trace.report())
    return "\n".join(_painted(line) for line in text.splitlines()) if coloured else text


def _painted(line: str) -> str:
    if match := _HEAD.match(line):
        return f"{_paint(match[1], _BOLD, _COLOURS[match[1]])}{_paint(match[2], _BOLD)}"
    if match := _FIX.match(line):
        return f"{match[1]}{_paint(match[2], _COLOURS.get(match[2], _DIM))}{match[3]}{match[4]}"
    return _paint(line, _DIM) if line.startswith(("  at ", "  path:")) else line


def _paint(text: str, *codes: int) -> str:
    return f"\033[{';'.join(map(str, codes))}m{text}\033[0m"
