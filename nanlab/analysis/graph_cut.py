"""Where a graph was cut: the operation whose operands carried gradient and whose result does not."""

from __future__ import annotations

import linecache
from bisect import bisect_right
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Literal

from nanlab.trace.recording import (
    DTYPE,
    FLAGS,
    FORWARD,
    INPLACE,
    LINE,
    MODULE,
    NODE,
    NOGRAD,
    OP,
    OPTIMIZER,
    PHASE,
    VIEW,
    Recording,
)

Kind = Literal[
    "no-grad", "detach", "data", "literal", "number", "numpy", "index", "comparison", "cast", "frozen", "unknown"
]
MOST_ROWS = 20_000  # rows that are walked over

_CHOICES = frozenset(
    "argmax argmin argsort sort topk multinomial bincount nonzero searchsorted bucketize unique one_hot histc any all".split()
)
_COMPARISONS = frozenset("gt lt ge le eq ne isnan isfinite isinf logical_and logical_or logical_not signbit".split())
_SEVERITY: dict[Kind, int] = {
    kind: i
    for i, kind in enumerate(
        ("no-grad", "literal", "number", "detach", "data", "numpy", "index", "cast", "comparison", "frozen", "unknown")
    )
}


@dataclass(frozen=True, slots=True)
class Cut:
    """One place where gradient was lost on the way to a result."""

    kind: Kind
    position: int  # row that lost it
    op: str
    module: str
    file: str
    line: int
    source: str
    carrier: int  # row (or parameter, negative) that still carried it; 0 tells nothing if ``known`` is False
    known: bool
    steps: int  # operations between it and the result
    carriers: tuple[int, ...] = ()  # for a literal: the rows whose values it holds


def place_of(recording: Recording, position: int) -> tuple[str, int, str]:
    """(file, line, source text) of a row."""
    row = recording.row(position) if position >= 0 else None
    return ("", 0, "") if row is None else place(recording, row[LINE])


def place(recording: Recording, number: int) -> tuple[str, int, str]:
    """(file, line, source text) of a numbered place."""
    file, line, real = recording.places[number]
    return file, line, linecache.getline(real, line).strip() if line else ""


class GraphCuts:
    """Questions about which rows of a recording carry gradient."""

    def __init__(self, recording: Recording, parameters: frozenset[int] = frozenset()) -> None:
        self.recording = recording
        self._parameters = parameters  # rows (or sources) that are known to be parameters
        self._custom = sorted(info.position for info in recording.nodes.values() if info.custom)
        self._live = recording.passes[-1].nodes if recording.passes else frozenset()

    def is_parameter(self, position: int) -> bool:
        """Whether a row or source is what a parameter (or buffer) held: read from outside, made while the model was built, or updated."""
        if position < 0:
            source = self.recording.sources.get(position)
            return position in self._parameters or (source is not None and source.kind == "parameter")
        row = self.recording.row(position)
        if row is None or position in self._parameters:
            return position in self._parameters
        in_place = bool(row[FLAGS] & INPLACE)
        if row[PHASE] == OPTIMIZER:
            return in_place
        # A tensor that was computed and then asked for a gradient is "owned" too, and no parameter.
        return position in self.recording.owned and (in_place or not self.recording.parents(position))

    def carries(self, position: int) -> bool:
        """Whether a row is part of a graph, or a parameter."""
        if self.is_parameter(position):
            return True
        row = self.recording.row(position) if position >= 0 else None
        if row is None or row[PHASE] != FORWARD:
            return False
        return row[NODE] >= 0 or (bool(row[FLAGS] & NOGRAD) and self._in_custom(position))

    def _in_custom(self, position: int) -> bool:
        """Whether a row without gradient is inside the forward of a torch.autograd.Function."""
        at = bisect_right(self._custom, position) - 1
        if at < 0:
            return False
        rows = (self.recording.row(p) for p in range(self._custom[at], position))
        return all(row is not None and row[FLAGS] & NOGRAD for row in rows)

    def cuts(self, root: int) -> list[Cut]:
        """The cuts on the way to ``root``, the most telling first, and of two alike the one nearest to it."""
        found: list[Cut] = []
        for position, steps in self._walk(root, self._leads_on):
            if self._is_literal(position):
                found += self._literal(position, steps)
            elif position >= 0 and not self.is_parameter(position):
                lost = next((p for p in self._parents(position) if self._lost_between(p, position)), None)
                if lost is not None:
                    found.append(self._cut(position, lost, steps))
        return sorted(found, key=lambda cut: (not cut.known, _SEVERITY[cut.kind], cut.steps))

    def reaches_parameter(self, root: int) -> bool:
        """Whether gradient flows from ``root`` to some parameter."""
        flows = self._walk(root, lambda p, c: self.carries(c) and not self._lost_between(p, c))
        return any(
            position in self._parameters if self._parameters else self.is_parameter(position) for position, _ in flows
        )

    def cuts_off_parameters(self, cut: Cut) -> bool:
        """Whether gradient would flow on to a parameter from where it was lost."""
        return cut.known and any(self._comes_from_parameter(p) for p in cut.carriers or (cut.carrier,))

    def _comes_from_parameter(self, position: int) -> bool:
        """Whether a row was computed from a parameter, whatever became of that graph."""
        flows = self._walk(position, lambda p, c: self.carries(p))
        return any(p in self._parameters if self._parameters else self.is_parameter(p) for p, _ in flows)

    def _walk(self, root: int, follow: Callable[[int, int], bool]) -> Iterator[tuple[int, int]]:
        """(row or source, operations to the root) of what leads to it, where ``follow(parent, child)``; a parameter is the end of a way."""
        distance = {root: 0}
        waiting = [root]
        for position in waiting:
            yield position, distance[position]
            if self.is_parameter(position):
                continue
            for parent in self._parents(position):
                if parent not in distance and len(distance) < MOST_ROWS and follow(parent, position):
                    distance[parent] = distance[position] + 1
                    waiting.append(parent)

    def _parents(self, position: int) -> list[int]:
        return [p for p in self.recording.parents(position) if p != position]

    def _leads_on(self, parent: int, child: int) -> bool:
        return not self._lost_between(parent, child)

    def _lost_between(self, parent: int, child: int) -> bool:
        """Whether a row carries gradient that an operation which reads it does not hand on."""
        if not self.carries(parent):
            return False
        row = self.recording.row(child)
        if row is None or row[PHASE] != FORWARD or not self.carries(child):
            return True
        made = self.recording.row(parent) if parent >= 0 and not self.is_parameter(parent) else None
        if made is None or made[NODE] < 0 or row[NODE] not in self._live:
            return False
        return made[NODE] not in self._live

    def _cut(self, position: int, carrier: int, steps: int) -> Cut:
        recording = self.recording
        at = self._detached(carrier, position)
        row = recording.row(position if at is None else at)
        assert row is not None
        op = recording.ops.items[row[OP]]
        module = recording.modules.items[row[MODULE]]
        file, line, source = place(recording, row[LINE])
        return Cut(
            self._kind(row, op, carrier, source),
            position if at is None else at,
            op,
            module,
            file,
            line,
            source,
            carrier,
            True,
            steps,
        )

    def _detached(self, carrier: int, reader: int) -> int | None:
        """The row that took ``carrier`` out of the graph before ``reader`` read it; an alias, so that the reader's edge does not name it."""
        reader_row = self.recording.row(reader)
        if reader_row is not None and reader_row[FLAGS] & NOGRAD:
            return None
        rows = self.recording.chunk_of(reader)
        for position in range(reader - 1, max(carrier, rows.start - 1), -1):
            if self._op(position) == "detach" and carrier in self.recording.parents(position):
                return position
        return None

    def _kind(self, row: tuple[int, ...], op: str, carrier: int, source: str) -> Kind:
        name = op.rstrip("_")
        if op == "detach":
            if ".numpy(" in source or "np." in source:
                return "numpy"
            made = any(word in source for word in ("torch.tensor(", "torch.as_tensor(")) and ".detach(" not in source
            return "literal" if made else "data" if ".data" in source and ".detach(" not in source else "detach"
        if row[FLAGS] & NOGRAD:
            return "no-grad"
        if name in _CHOICES:
            return "index"
        if name in _COMPARISONS:
            return "comparison"
        dtype = self.recording.dtypes.items[row[DTYPE]]
        if not (dtype.is_floating_point or dtype.is_complex):
            return "cast"
        return "frozen" if carrier < 0 else "unknown"

    # -- values that left torch ------------------------------------------------------------------------------------

    def _is_literal(self, position: int) -> bool:
        source = self.recording.sources.get(position) if position < 0 else None
        return source is not None and source.kind == "literal" and "float" in source.dtype

    def _literal(self, number: int, steps: int) -> list[Cut]:
        """A tensor made from Python numbers or an array, where these may be values that carried gradient."""
        recording = self.recording
        position = recording.sources[number].first
        ends = self._dead_ends(position)
        held = self._held(number, ends)
        read = self._read_before(position, held or ends)
        arrays = [end for end in held or ends if self._op(end) == "detach"]
        row = recording.row(position)
        spot = place(recording, row[LINE]) if row is not None else ("", 0, "")
        module = recording.modules.items[row[MODULE]] if row is not None else ""
        if read is not None:
            return [Cut("number", position, "item", module, *place(recording, read[1]), read[0], True, steps)]
        if arrays:
            return [Cut("numpy", position, "numpy", module, *place_of(recording, arrays[-1]), arrays[-1], True, steps)]
        if held:
            return [Cut("literal", position, "lift_fresh", module, *spot, held[-1], True, steps, tuple(held))]
        return [Cut("literal", position, "lift_fresh", module, *spot, 0, False, steps)]

    def _op(self, position: int) -> str:
        row = self.recording.row(position)
        return "" if row is None else str(self.recording.ops.items[row[OP]])

    def _dead_ends(self, before: int) -> list[int]:
        """Rows since the last update that carry gradient (or were detached from such) and that no operation has read since."""
        recording = self.recording
        chunk = recording.chunk_of(before)
        used = set(chunk.edge_table()[:, 1].tolist())
        ends = []
        for position in range(self._since(before), before):
            row = recording.row(position)
            if row is None or position in used or row[PHASE] != FORWARD or self.is_parameter(position):
                continue
            if row[FLAGS] & VIEW and all(self.is_parameter(p) for p in recording.parents(position)):
                continue
            if self._detached_by_program(position, row) or self.carries(position):
                ends.append(position)
        return ends

    def _detached_by_program(self, position: int, row: tuple[int, ...]) -> bool:
        """Whether a row is a ``detach`` that the program wrote; autograd detaches what it saves, right after the operation that made it."""
        recording = self.recording
        if recording.ops.items[row[OP]] != "detach":
            return False
        parents = recording.parents(position)
        written = any(word in place(recording, row[LINE])[2] for word in ("detach", "numpy", ".data"))
        return any(self.carries(p) for p in parents) and (written or position - 1 not in parents)

    def _read_before(self, position: int, ends: list[int]) -> tuple[int, int] | None:
        """(row, place) of the last value that was read as a number before and led nowhere else."""
        start = self._since(position)
        for read in reversed(self.recording.escapes.read_outs):
            if start <= read.position <= position and read.source in ends:
                return read.source, read.line
        return None

    def _since(self, position: int) -> int:
        """Position after the last update of a parameter before this one."""
        chunk = self.recording.chunk_of(position)
        first = max(chunk.start, position - MOST_ROWS)
        for at in range(position - 1, first - 1, -1):
            row = self.recording.row(at)
            if row is not None and row[PHASE] == OPTIMIZER and row[FLAGS] & INPLACE:
                return at + 1
        return first

    def _held(self, number: int, ends: list[int]) -> list[int]:
        """The dead ends whose values a literal holds: as many elements, in the same range."""
        recording = self.recording
        stats = recording.stats(number)
        if stats is None or stats.min is None:
            return []
        by_size: dict[int, list[int]] = {}
        for end in ends:
            each = recording.stats(end)
            if each is not None and each.min is not None and stats.min <= each.min and each.max <= stats.max:
                by_size.setdefault(each.numel, []).append(end)
        for size, rows in by_size.items():
            if size * len(rows) >= stats.numel and stats.numel % size == 0:
                return rows[-(stats.numel // size) :]
        return []


def last_root(recording: Recording) -> int | None:
    """The row (or source) that the last ``backward()`` began with."""
    for run in reversed(recording.passes):
        if run.roots:
            return run.roots[0]
    return None
