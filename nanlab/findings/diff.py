"""Edits as a unified diff."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from difflib import unified_diff
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from nanlab.findings.rule import Edit


def diff_of(edits: Sequence[Edit]) -> str:
    """Edits as a unified diff, file by file, for ``git apply`` or ``patch -p1``: with the lines
    around them, where the file is at hand and as it was."""
    parts: list[str] = []
    for file in dict.fromkeys(edit.file for edit in edits):
        own = sorted((e for e in edits if e.file == file), key=lambda e: e.first)
        old, new = _names_in_diff(file)
        lines = _as_it_stands(file)
        if lines and all(_rows_of(lines, edit) == edit.old.splitlines() for edit in own):
            parts += map(_ended, unified_diff(lines, _with_edits(lines, own), old, new))
            continue
        parts += [f"--- {old}\n", f"+++ {new}\n"]
        moved = 0
        for edit in own:
            gone, rows = edit.old.splitlines(), edit.rows()
            parts.append(f"@@ -{edit.first},{len(gone)} +{edit.first + moved},{len(rows)} @@\n")
            parts += [*(f"-{row}\n" for row in gone), *(f"+{row}\n" for row in rows)]
            moved += len(rows) - len(gone)
    return Diff("".join(parts))


def _names_in_diff(file: str) -> tuple[str, str]:
    """A file's names in a diff: below the folder that Python runs in, as git writes them."""
    with suppress(OSError, ValueError):
        below = Path(file).relative_to(Path.cwd()).as_posix()
        return f"a/{below}", f"b/{below}"
    return file, file


def _as_it_stands(file: str) -> list[str]:
    """The lines of a file on disk, with what ends them; none of a cell."""
    with suppress(OSError, ValueError), open(file, encoding="utf-8", newline="") as stream:
        return [*stream]
    return []


def _rows_of(lines: Sequence[str], edit: Edit) -> list[str]:
    return [row.rstrip("\r\n") for row in lines[edit.first - 1 : edit.last]]


def _with_edits(lines: Sequence[str], edits: Sequence[Edit]) -> list[str]:
    """The lines of a file with edits, which end as the others do."""
    new, end = list(lines), "\r\n" if lines[0].endswith("\r\n") else "\n"
    for edit in reversed(edits):
        rows = [row + end for row in edit.rows()]
        if rows and not lines[edit.last - 1].endswith("\n"):
            rows[-1] = rows[-1].removesuffix(end)
        new[edit.first - 1 : edit.last] = rows
    return new


def _ended(line: str) -> str:
    """A line of a diff; of one that nothing ends this is said."""
    return line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n"


class Diff(str):
    """A unified diff, which a notebook shows line by line."""

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:
        printer.text(str(self))
