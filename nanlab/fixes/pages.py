"""The text that a fix is written in: the file of the line at fault, and what made its operands in
other files or cells."""

from __future__ import annotations

import ast
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass

from nanlab.program.expression import lines_of
from nanlab.trace.chunk import Span

MOST_FILES = 4  # beside that of the line


@dataclass(frozen=True)
class Pages:
    """Files joined into one text, that of the line last. Other files keep only the definitions and
    statements that ran; their remaining lines are empty."""

    text: str
    before: Mapping[str, int]  # by file, the lines that stand before it

    @classmethod
    def of(
        cls, file: str, text: str, ran: Mapping[str, Collection[int]], read: Callable[[str], str]
    ) -> Pages:
        """The pages of a file, and of others in which these lines ran.

        read: gives the text of a file by its name.
        """
        rows: list[str] = []
        before: dict[str, int] = {}
        for other in [name for name in ran if name != file][:MOST_FILES]:
            if kept := _definitions(read(other), ran[other]):
                before[other] = len(rows)
                rows += kept
        before[file] = len(rows)
        return cls("\n".join([*rows, text]), before)

    def line(self, file: str, line: int) -> int:
        """A line of a file in the text; 0 where the file is not among these."""
        return self.before[file] + line if file in self.before else 0

    def span(self, file: str, span: Span | None) -> Span | None:
        """A stretch of a file in the text."""
        if span is None or file not in self.before:
            return None
        first, begin, last, end = span
        return first + self.before[file], begin, last + self.before[file], end

    def place(self, first: int, last: int) -> tuple[str, int, int] | None:
        """The file of lines of the text, and its own numbers for them; None where they are of
        two."""
        file = max((f for f, n in self.before.items() if n < first), key=lambda f: self.before[f])
        start = self.before[file]
        if any(start < n < last for n in self.before.values()):
            return None
        return file, first - start, last - start


def _definitions(text: str, lines: Collection[int]) -> list[str]:
    """The text of a file with only the definitions and statements that hold some lines, each at its
    place; empty where the text cannot be parsed."""
    try:
        body = ast.parse(text).body
    except SyntaxError:
        return []
    rows = text.splitlines()
    kept = [""] * len(rows)
    for statement in body:
        own = lines_of(statement)
        if any(line in own for line in lines):
            kept[own[0] - 1 : own[-1]] = rows[own[0] - 1 : own[-1]]
    while kept and not kept[-1]:
        kept.pop()
    return kept
