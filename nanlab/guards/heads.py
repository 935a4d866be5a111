"""The call that stands at the head of a guarded loop; it does nothing where no guard is on."""

from __future__ import annotations

import sys
from types import FrameType
from typing import Protocol

from nanlab.guards.loops import Loop, source_of


class _Began(Protocol):
    def __call__(self, loop: Loop, frame: FrameType) -> None: ...


began: list[_Began] = []  # of the guard that is on
_numbers: dict[tuple[int, int], int] = {}  # by line and column
_places: list[tuple[int, int]] = []
_loops: dict[tuple[int, str], Loop] = {}  # by the number in the call, and the file


def register(line: int, column: int) -> int:
    """The number of a loop that stands at a place of some file."""
    if (line, column) not in _numbers:
        _numbers[line, column] = len(_places)
        _places.append((line, column))
    return _numbers[line, column]


def head(number: int) -> None:
    """A turn of a loop begins."""
    if not began:
        return
    frame = sys._getframe(1)
    file = frame.f_code.co_filename
    loop = _loops.get((number, file))
    if loop is None:
        loop = Loop(file, source_of(file, frame.f_globals), *_places[number])
        _loops[number, file] = loop
    began[-1](loop, frame)
