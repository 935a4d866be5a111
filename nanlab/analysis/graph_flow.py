"""Which rows of a recording carry gradient, and where it flows."""

from __future__ import annotations

import linecache
from bisect import bisect_right
from collections.abc import Callable, Iterator

from nanlab.trace.recording import FORWARD, OPTIMIZER, Recording

MOST_ROWS = 100_000  # rows that are walked over


def place_of(recording: Recording, position: int) -> tuple[str, int, str]:
    """(file, line, source text) of a row."""
    row = recording.op(position)
    return ("", 0, "") if row is None else place(recording, row.place)


def place(recording: Recording, number: int) -> tuple[str, int, str]:
    """(file, line, source text) of a numbered place."""
    file, line, real = recording.places[number]
    return file, line, linecache.getline(real, line).strip() if line else ""


def last_root(recording: Recording) -> int | None:
    """The row (or source) that the last ``backward()`` began with."""
    for run in reversed(recording.passes):
        if run.roots:
            return run.roots[0]
    return None


class GraphFlow:
    """Questions about the flow of gradient through a recording."""

    def __init__(self, recording: Recording, parameters: frozenset[int] = frozenset()) -> None:
        self.recording = recording
        self.parameters = parameters  # rows (or sources) that are known to be parameters
        self._custom = sorted(info.position for info in recording.nodes.values() if info.custom)
        self._live = recording.passes[-1].nodes if recording.passes else frozenset()

    def is_parameter(self, position: int) -> bool:
        """Whether a row or source is what a parameter (or buffer) held.

        That is read from outside, made while the model was built, or updated by an optimizer.
        """
        if position < 0:
            source = self.recording.sources.get(position)
            return position in self.parameters or (source is not None and source.kind == "parameter")
        row = self.recording.op(position)
        if row is None or position in self.parameters:
            return position in self.parameters
        in_place = bool(row.inplace)
        if row.phase == OPTIMIZER:
            return in_place
        # A tensor that was computed and then asked for a gradient is "owned" too, and no parameter.
        return position in self.recording.owned and (in_place or not self.recording.parents(position))

    def carries(self, position: int) -> bool:
        """Whether a row is part of a graph, or a parameter."""
        if self.is_parameter(position):
            return True
        row = self.recording.op(position)
        if row is None or row.phase != FORWARD:
            return False
        return row.node >= 0 or (bool(row.without_grad) and self._in_custom(position))

    def _in_custom(self, position: int) -> bool:
        """Whether a row without gradient is inside the forward of a torch.autograd.Function."""
        at = bisect_right(self._custom, position) - 1
        if at < 0:
            return False
        rows = (self.recording.op(p) for p in range(self._custom[at], position))
        return all(row is not None and row.without_grad for row in rows)

    def walk(self, root: int, follow: Callable[[int, int], bool]) -> Iterator[tuple[int, int]]:
        """(row or source, operations to the root) of what leads to it, where ``follow(parent, child)``.

        A parameter is the end of a way.
        """
        distance = {root: 0}
        waiting = [root]
        for position in waiting:
            yield position, distance[position]
            if self.is_parameter(position):
                continue
            for parent in self.parents(position):
                if parent not in distance and len(distance) < MOST_ROWS and follow(parent, position):
                    distance[parent] = distance[position] + 1
                    waiting.append(parent)

    def parents(self, position: int) -> list[int]:
        """What a row or source came from."""
        return [p for p in self.recording.parents(position) if p != position]

    def lost_between(self, parent: int, child: int) -> bool:
        """Whether a row carries gradient that an operation which reads it does not hand on."""
        if not self.carries(parent):
            return False
        row = self.recording.op(child)
        if row is None or row.phase != FORWARD or not self.carries(child):
            return True
        made = self.recording.op(parent) if parent >= 0 and not self.is_parameter(parent) else None
        if made is None or made.node < 0 or row.node not in self._live:
            return False
        return made.node not in self._live

    def reaches_parameter(self, root: int) -> bool:
        """Whether gradient flows from ``root`` to some parameter."""
        flows = self.walk(root, lambda p, c: self.carries(c) and not self.lost_between(p, c))
        return any(self._is_wanted(position) for position, _ in flows)

    def comes_from_parameter(self, position: int) -> bool:
        """Whether a row was computed from a parameter, whatever became of that graph."""
        flows = self.walk(position, lambda parent, child: self.carries(parent))
        return any(self._is_wanted(each) for each, _ in flows)

    def _is_wanted(self, position: int) -> bool:
        return position in self.parameters if self.parameters else self.is_parameter(position)

    def op(self, position: int) -> str:
        """Name of a row's operation; "" for a source."""
        row = self.recording.op(position)
        return "" if row is None else row.name
