"""The selection of a trace: one row, which all its views show and the user's code reads as
``trace.at``."""

from __future__ import annotations

import operator
import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pandas as pd

from nanlab.errors import TypeMismatchError, UsageError
from nanlab.trace.locations import location

if TYPE_CHECKING:
    from nanlab.trace import Trace

# columns by which a row of a table names its position
ROW_OF = ("position", "position_out", "position_in")


class Place(int):
    """A row of ``trace.ops`` as its position, with what stands there:
    ``trace.ops.loc[trace.at]``."""

    op: str
    phase: str
    module: str
    file: str
    line: int
    node: int | None  # the autograd sequence number
    step: int

    def __repr__(self) -> str:
        node = "" if self.node is None else f"node {self.node}"
        where = location(self.file, self.line)
        told = ", ".join(
            part for part in (self.op, self.phase, where, node, f"step {self.step}") if part
        )
        return f"{int(self)} ({told})"


def place_at(trace: Trace, position: int) -> Place:
    """The row of ``trace.ops`` at a position. Raises UsageError where there is none."""
    ops = trace.ops
    if position not in ops.index:
        raise UsageError(f"no row at position {position}; trace.ops.position lists those at hand")
    row: Any = ops.loc[position]
    place = Place(position)
    place.op, place.phase, place.module = str(row["op"]), str(row["phase"]), str(row["module"])
    place.file, place.line, place.step = str(row["file"]), int(row["line"]), int(row["step"])
    place.node = None if pd.isna(row["node"]) else int(row["node"])
    return place


def culprit_place(trace: Trace) -> Place | None:
    """Where the culprit began; None without a culprit, or where it has no row."""
    found = trace.culprit
    known = found is not None and found.position in trace.ops.index
    return place_at(trace, found.position) if known and found is not None else None


def position_of(what: Any) -> int:
    """The position that a position, a row of a table, a finding or a widget means. Raises
    TypeMismatchError."""
    if isinstance(what, (str, bytes)):
        raise TypeMismatchError(f"expected a position or a row of a table, got {what!r}")
    try:
        return operator.index(what)
    except TypeError:
        pass
    row: Any = getattr(what, "row", what)  # a widget has the row that it shows
    get: Callable[[str], Any] = (
        row.get if hasattr(row, "get") else lambda name: getattr(row, name, None)
    )
    for name in ROW_OF:
        try:
            return operator.index(get(name))
        except TypeError:
            continue
    raise TypeMismatchError(
        "expected a position, a row of trace.ops or trace.backward, or a finding, got"
        f" {type(what).__name__}; try: trace.at = trace.culprit"
    )


class Selection:
    """Which row is selected, and who follows it. A follower that is gone is forgotten."""

    def __init__(self) -> None:
        self.place: Place | None = None
        self._followers: list[weakref.WeakMethod[Callable[[Place], None]]] = []

    def follow(self, follower: Callable[[Place], None]) -> None:
        """Call the method at each new selection."""
        self._followers.append(weakref.WeakMethod(follower))

    def select(self, place: Place) -> None:
        """Select a row and tell the followers; selecting it again tells nobody."""
        if place == self.place:
            return
        self.place = place
        self._followers = [each for each in self._followers if each() is not None]
        for reference in list(self._followers):
            follower = reference()
            if follower is not None:
                follower(place)
