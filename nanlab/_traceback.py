"""The traceback of a watched cell as it is shown: library frames folded, the user's own first
line."""

from __future__ import annotations

import re
import sysconfig
from collections.abc import Iterable
from itertools import groupby
from pathlib import Path

COLOUR = r"(?:\x1b\[[0-9;]*m)*"  # between any two letters, where IPython paints what it shows
FRAME = re.compile(r"File (?P<path>.+?):(?P<line>\d+), in (?P<function>[^(\n]+)")
STANDARD = Path(sysconfig.get_paths()["stdlib"])
INSTALLED = ("site-packages", "dist-packages")
CALL = "get_ipython().run_line_magic('_nanwatch_cell', "
CELL_MAGIC = "%%nanwatch"
OURS = re.compile(
    COLOUR.join(map(re.escape, CALL)) + rf"{COLOUR}(?P<options>'[^']*'|\"[^\"]*\"){COLOUR}\)"
)


def shown_traceback(parts: Iterable[str]) -> list[str]:
    """The parts of a traceback as IPython gives them, runs of library frames folded to one line."""
    shown: list[str] = []
    for library, group in groupby(parts, library_of):
        run = list(group)
        shown += [folded(library, run)] if library else [own_line(part) for part in run]
    return shown


def library_of(part: str) -> str:
    """The installed package that a frame lies in; "" for the user's own and for what is no
    frame."""
    frame = FRAME.match(plain(part))
    if frame is None:
        return ""
    path = Path(frame["path"]).expanduser()
    packages = [path.parts[i + 1] for i, name in enumerate(path.parts[:-1]) if name in INSTALLED]
    if packages:
        return packages[-1].removesuffix(".py")
    return "Python's library" if path.is_relative_to(STANDARD) else ""


def folded(library: str, run: list[str]) -> str:
    """One line for a run of frames of one library, with the last of them."""
    last = FRAME.match(plain(run[-1]))
    assert last is not None
    parts = Path(last["path"]).parts
    start = parts.index(library) + 1 if library in parts else -1
    path = "/".join(parts[start:])
    frames = "1 frame" if len(run) == 1 else f"{len(run)} frames"
    return (
        f"   ... {frames} of {library} folded (%tb shows all), "
        f"the last: {path}:{last['line']}, {last['function'].strip()}"
    )


def own_line(part: str) -> str:
    """A part with ``%%nanwatch`` where the user typed it, rather than the call it becomes."""
    return OURS.sub(lambda match: f"{CELL_MAGIC} {plain(match['options'])[1:-1]}".rstrip(), part)


def plain(text: str) -> str:
    """The text without its colours."""
    return re.sub(r"\x1b\[[0-9;]*m", "", text)


__all__ = ["shown_traceback"]
