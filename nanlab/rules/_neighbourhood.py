"""The operations around a fault: what its operands were made from, and what was made from its result."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Iterator
from functools import cached_property

from nanlab.operators import having
from nanlab.trace import Trace
from nanlab.trace.op import walk
from nanlab.trace.recording import HEALED, Recording

# Operations through which a value is followed: they hand it on, reshaped, rounded, scaled or shifted.
THROUGH = having("hands_on", in_place=True)

ON_LISTS = "_foreach_"  # how the name of an operator on lists of tensors begins


class Neighbourhood(ABC):
    """The data flow of a trace around one operation of the forward pass."""

    trace: Trace

    @property
    @abstractmethod
    def forward_position(self) -> int:
        """Its row; -1 if it is gone."""

    @property
    def recording(self) -> Recording:
        return self.trace.recording

    def op_at(self, position: int) -> str:
        """The operator of a row: ``div``, also where it ran in place or on lists of tensors."""
        row = self.recording.op(position)
        return "" if row is None else _plain(row.name)

    def numel_at(self, position: int) -> int:
        """How many elements a row or source has; 0 if it is gone."""
        stats = self.recording.stats(position)
        return stats.numel if stats is not None else 0

    def text_at(self, position: int) -> str:
        """The user's line of a row; "" where it is not at hand."""
        row = self.recording.op(position)
        if row is None:
            return ""
        file, line = row.file, row.line
        return " ".join(text for _, text in self.trace.source(file, line, 0)).split("#")[0]

    def parents(self, position: int) -> list[int]:
        """The rows that an operation read, in the order of its arguments."""
        return self.recording.parents(position)

    def operand_row(self, slot: int) -> int:
        """The row of one operand of the forward operation; -1 if it is gone or came from outside."""
        if self.forward_position < 0:
            return -1
        row, own = self.recording.op(self.forward_position), self.recording.own_operands(self.forward_position)
        if row is not None and row.name.startswith(ON_LISTS):
            own = [(source, at) for at, (source, _) in enumerate(own)]
        return next((source for source, at in own if at == slot), -1)

    def upstream(self, position: int, depth: int = 8) -> Iterator[tuple[int, str]]:
        """(position, op) of a row and of what it was made from, through operations that hand a value on."""
        level, seen = [position], {position}
        for _ in range(depth):
            following = []
            for at in level:
                if at < 0:
                    following += [p for p in self.parents(at) if p not in seen]
                    continue
                op = self.op_at(at)
                if not op:
                    continue
                yield at, op
                if op in THROUGH:
                    following += [p for p in self.parents(at) if p not in seen]
            seen.update(following)
            level = following

    def consumers(self, position: int) -> list[int]:
        """The forward rows that read a row or source."""
        source = self.recording.sources.get(position)
        chunk = self.recording.chunk_of(position if source is None else source.first)
        edges = chunk.edge_table()
        calls = edges[edges[:, 1] == position, 0].tolist()
        rows = [(c, self.recording.op(c)) for c in dict.fromkeys(calls)]
        return [c for c, row in rows if row is not None and not row.backward]

    def downstream(self, depth: int = 5) -> Iterator[tuple[int, str]]:
        """(position, op) of what was made from the result of the forward operation, the nearest first.

        A tensor that was written piece by piece is a source, with the op "".
        """
        level, seen = ([self.forward_position] if self.forward_position >= 0 else []), set()
        for _ in range(depth):
            following = []
            for at in level:
                tables = list(self._tables(at))
                yield from ((table, "") for table in tables if table not in seen)
                seen.update(tables)
                for reader in (r for holder in (at, *tables) for r in self.consumers(holder)):
                    if reader in seen:
                        continue
                    seen.add(reader)
                    yield reader, self.op_at(reader)
                    following.append(reader)
            level = following[:16]

    @cached_property
    def _snapshots(self) -> dict[int, list[int]]:
        """What was written into tensors piece by piece, and the sources that such tensors then were."""
        found: dict[int, list[int]] = defaultdict(list)
        for number, source in self.recording.sources.items():
            for part in source.parents:
                found[part].append(number)
        return found

    def _tables(self, position: int) -> Iterator[int]:
        """The tensors of which a row became a part, while it was one that could be bad."""
        for number in self._snapshots.get(position, ()):
            yield number
            if number in self.recording.bad:
                yield from self._tables(number)

    def wrote_over(self, position: int) -> int:
        """The row after whose write a tensor of parts held nothing bad any more; -1: it held nothing bad, or still does."""
        source, bad = self.recording.sources.get(position), self.recording.bad
        if source is None or position in bad or not any(part in bad for part in source.parents):
            return -1
        for at in range(source.first - 1, max(source.parents), -1):
            row = self.recording.op(at)
            if row is not None and row.inplace:
                return at
        return -1

    def comes_from_gradient(self, position: int, node: int) -> bool:
        """Whether what the derivative of a node reads was made from the gradient that came in, not from what it had saved."""

        def of_node(at: int) -> list[int]:
            row = self.recording.op(at)
            return self.parents(at) if row is not None and row.backward and row.node == node else []

        rows = (self.recording.op(at) for at in walk([position], of_node))
        return any(row is not None and row.backward and row.node != node for row in rows)

    def negative_determinant(self, position: int) -> int:
        """The row of the determinant that was negative, where a NaN is the one that torch.logdet writes for it; else -1."""
        if self.op_at(position) != "scalar_tensor":
            return -1
        chosen = [c for c in self.consumers(position) if self.op_at(c) == "where"]
        rows = [p for c in chosen for p in self.parents(c) if self.op_at(p) == "_linalg_slogdet"]
        return next(iter(rows), -1)

    def healed(self, position: int) -> bool:
        """Whether a row is finite although something it read was not."""
        return self.recording.status.get(position) == HEALED

    def value_was_bad(self) -> bool:
        """Whether the result of the forward operation was itself non-finite."""
        return self.forward_position in self.recording.bad


def _plain(name: str) -> str:
    return name.removeprefix(ON_LISTS).rstrip("_") or name
