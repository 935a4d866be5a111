"""Where a graph was cut: the operation whose operands carried gradient and whose result does not."""

from __future__ import annotations

import linecache
from bisect import bisect_right
from dataclasses import dataclass
from typing import Literal

from nanlab.trace.recording import DTYPE, FLAGS, FORWARD, LINE, MODULE, NODE, NOGRAD, OP, PHASE, SHAPE, Recording

Kind = Literal["no-grad", "detach", "data", "literal", "number", "numpy", "index", "comparison", "cast", "frozen", "unknown"]
MOST_ROWS = 20_000  # rows that are walked over

_CHOICES = frozenset("argmax argmin argsort sort topk multinomial bincount nonzero searchsorted bucketize unique one_hot histc any all".split())
_COMPARISONS = frozenset("gt lt ge le eq ne isnan isfinite isinf logical_and logical_or logical_not signbit".split())
_SEVERITY: dict[Kind, int] = {
    kind: i for i, kind in enumerate(("no-grad", "literal", "number", "detach", "data", "numpy", "index", "cast", "comparison", "frozen", "unknown"))
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

    def __init__(self, recording: Recording) -> None:
        self.recording = recording
        self._custom = sorted(info.position for info in recording.nodes.values() if info.custom)

    def carries(self, position: int) -> bool:
        """Whether a row, or a parameter, is part of a graph."""
        if position < 0:
            source = self.recording.sources.get(position)
            return source is not None and source.kind == "parameter"
        row = self.recording.row(position)
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
        distance = {root: 0}
        waiting = [root]
        for position in waiting:
            parents = self._forward_parents(position)
            cut = self._cut_at(position, parents, distance[position])
            if cut is not None:
                found.append(cut)
                if cut.kind != "frozen":
                    continue
            for parent in parents:
                if parent not in distance and len(distance) < MOST_ROWS:
                    distance[parent] = distance[position] + 1
                    waiting.append(parent)
        return sorted(found, key=lambda cut: (not cut.known, _SEVERITY[cut.kind], cut.steps))

    def reaches_parameter(self, root: int) -> bool:
        """Whether gradient flows from ``root`` to some parameter."""
        seen, waiting = {root}, [root]
        for position in waiting:
            if position < 0 and self.carries(position):
                return True
            if position >= 0 and not self.carries(position):
                continue
            for parent in self._forward_parents(position):
                if parent not in seen and len(seen) < MOST_ROWS:
                    seen.add(parent)
                    waiting.append(parent)
        return False

    def _forward_parents(self, position: int) -> list[int]:
        return [p for p in self.recording.parents(position) if p != position]

    def _cut_at(self, position: int, parents: list[int], steps: int) -> Cut | None:
        recording = self.recording
        row = recording.row(position) if position >= 0 else None
        if row is None or self.carries(position):
            return None
        op = recording.ops.items[row[OP]]
        if op == "lift_fresh":
            return self._literal(position, steps)
        carrier = next((p for p in parents if self.carries(p)), None)
        if carrier is None:
            return self._from_outside(position, parents, steps)
        file, line, source = place(recording, row[LINE])
        module = recording.modules.items[row[MODULE]]
        return Cut(self._kind(row, op, carrier, source), position, op, module, file, line, source, carrier, True, steps)

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

    def _literal(self, position: int, steps: int) -> Cut | None:
        """A tensor made from Python numbers or an array, where these are values that carried gradient."""
        row = self.recording.row(position)
        assert row is not None
        dtype = self.recording.dtypes.items[row[DTYPE]]
        if not dtype.is_floating_point:
            return None
        file, line, source = place(self.recording, row[LINE])
        module = self.recording.modules.items[row[MODULE]]
        ends = self._dead_ends(position)
        read = self._read_before(position, ends)
        if read is not None:
            where = place(self.recording, read[1])
            return Cut("number", position, "item", module, *where, read[0], True, steps, tuple(ends))
        held = self._held(position, ends)
        if not held:
            return Cut("literal", position, "lift_fresh", module, file, line, source, 0, False, steps)
        kind: Kind = "numpy" if any(self._op(p) == "detach" for p in held) else "literal"
        if kind == "numpy":
            file, line, source = place_of(self.recording, held[-1])
        return Cut(kind, position, "lift_fresh", module, file, line, source, held[-1], True, steps, tuple(held))

    def _op(self, position: int) -> str:
        row = self.recording.row(position)
        return "" if row is None else str(self.recording.ops.items[row[OP]])

    def _dead_ends(self, before: int) -> list[int]:
        """Rows of the same step that carry gradient (or were detached from such) and that no operation has read since."""
        recording = self.recording
        start = recording.starts[recording.step_of(before)]
        chunk = recording.chunk_of(before)
        used = set(chunk.edge_table()[:, 1].tolist())
        ends = []
        for position in range(max(start, chunk.start), before):
            row = recording.row(position)
            if row is None or position in used or row[PHASE] != FORWARD:
                continue
            detached = recording.ops.items[row[OP]] == "detach" and any(self.carries(p) for p in recording.parents(position))
            if self.carries(position) or detached:
                ends.append(position)
        return ends

    def _read_before(self, position: int, ends: list[int]) -> tuple[int, int] | None:
        """(row, place) of the last value that was read as a number before, in the same step, and led nowhere else."""
        step = self.recording.step_of(position)
        for read in reversed(self.recording.escapes.read_outs):
            if read.position <= position and self.recording.step_of(read.position) == step and (read.source in ends or read.source < 0):
                return read.source, read.line
        return None

    def _held(self, position: int, ends: list[int]) -> list[int]:
        """The dead ends whose values a literal holds: as many elements, in the same range."""
        recording = self.recording
        stats = recording.stats(position)
        if stats is None or stats.min is None:
            return []
        inside = []
        for end in ends:
            each = recording.stats(end)
            if each is not None and each.min is not None and stats.min <= each.min and each.max <= stats.max:
                inside.append(end)
        total = 0
        for count, end in enumerate(reversed(inside), start=1):
            total += recording.stats(end).numel
            if total == stats.numel:
                return inside[-count:]
        return []

    def _from_outside(self, position: int, parents: list[int], steps: int) -> Cut | None:
        """A tensor that came in without an operation: ``torch.from_numpy`` of an array that was computed from the graph."""
        recording = self.recording
        for parent in parents:
            source = recording.sources.get(parent) if parent < 0 else None
            if source is None or source.kind != "data" or "float" not in source.dtype or source.first != position:
                continue
            ends = [e for e in self._dead_ends(position) if self._op(e) == "detach" and self._shape(e) == source.shape]
            if ends:
                file, line, text = place_of(recording, ends[-1])
                return Cut("numpy", position, "from_numpy", "", file, line, text, ends[-1], True, steps, tuple(ends[-1:]))
        return None

    def _shape(self, position: int) -> tuple[int, ...]:
        row = self.recording.row(position)
        return () if row is None else tuple(self.recording.shapes.items[row[SHAPE]])


def last_root(recording: Recording) -> int | None:
    """The row (or source) that the last ``backward()`` began with."""
    for run in reversed(recording.passes):
        if run.roots:
            return run.roots[0]
    return None
