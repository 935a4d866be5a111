"""Which loop of the program came round, read off its bytecode."""

from __future__ import annotations

import dis
from dataclasses import dataclass
from types import CodeType, FrameType

from nanlab.capture.source import Path, call_path


@dataclass(frozen=True)
class Loop:
    """A loop in a function that was called in a certain way."""

    outer: tuple[tuple[int, int, str], ...]  # the calls around it
    code: int
    first: int  # its instructions, as byte offsets
    last: int

    def holds(self, path: Path) -> bool:
        """Whether the program stands in it."""
        level = len(self.outer)
        if len(path) <= level or tuple(path[:level]) != self.outer:
            return False
        code, at, _ = path[level]
        return code == self.code and self.first <= at <= self.last

    def surrounds(self, other: Loop) -> bool:
        """Whether the other loop runs inside of this one."""
        return self != other and self.holds([*other.outer, (other.code, other.first, "")])


class Loops:
    """The loops of the functions that were asked about."""

    def __init__(self) -> None:
        self._known: dict[
            int, tuple[CodeType, list[tuple[int, int]]]
        ] = {}  # the code is kept, so that its id() stays its own

    def around(self, before: Path, frame: FrameType | None) -> Loop | None:
        """The innermost loop in which the program stood at both moments; None where it cannot be told."""
        now, codes = call_path(frame), []
        while frame is not None:
            codes.append(frame.f_code)
            frame = frame.f_back
        codes.reverse()
        shared = 0
        for (code, at, _), (code_now, at_now, _) in zip(before, now, strict=False):
            if code != code_now:
                break
            shared += 1
            if at != at_now:
                break
        for level in reversed(range(shared)):
            low, high = sorted((before[level][1], now[level][1]))
            found = [span for span in self._of(codes[level]) if span[0] <= low and high <= span[1]]
            if found:
                first, last = min(found, key=lambda span: span[1] - span[0])
                return Loop(tuple(now[:level]), id(codes[level]), first, last)
        return None

    def _of(self, code: CodeType) -> list[tuple[int, int]]:
        if id(code) not in self._known:
            spans: dict[int, int] = {}
            for step in dis.get_instructions(code):
                if (
                    "JUMP_BACKWARD" in step.opname and "NO_INTERRUPT" not in step.opname
                ):  # that one waits for a coroutine
                    spans[step.argval] = max(step.offset, spans.get(step.argval, 0))
            self._known[id(code)] = code, list(spans.items())
        return self._known[id(code)][1]
