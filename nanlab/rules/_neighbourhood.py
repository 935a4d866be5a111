"""The operations around a fault: what its operands were made from, and what was made from its
result."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Iterator
from functools import cached_property

from nanlab.analysis.leaves import MOVES
from nanlab.operators import having
from nanlab.trace import Trace
from nanlab.trace.op import walk
from nanlab.trace.recording import HEALED, Recording

# Operations through which a value is followed: they hand it on, reshaped, rounded, scaled or
# shifted.
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
        """The row of one operand of the forward operation; -1 if it is gone or came from
        outside."""
        if self.forward_position < 0:
            return -1
        row, own = (
            self.recording.op(self.forward_position),
            self.recording.own_operands(self.forward_position),
        )
        if row is not None and row.name.startswith(ON_LISTS):
            own = [(source, at) for at, (source, _) in enumerate(own)]
        return next((source for source, at in own if at == slot), -1)

    def upstream(self, position: int, depth: int = 8) -> Iterator[tuple[int, str]]:
        """(position, op) of a row and of what it was made from, through operations that hand a
        value on."""
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
        """(position, op) of what was made from the result of the forward operation, the nearest
        first.

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
        """What was written into tensors piece by piece, and the sources that such tensors then
        were."""
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
        """The row after whose write a tensor of parts held nothing bad any more; -1: it held
        nothing bad, or still does."""
        source, bad = self.recording.sources.get(position), self.recording.bad
        if source is None or position in bad or not any(part in bad for part in source.parents):
            return -1
        for at in range(source.first - 1, max(source.parents), -1):
            row = self.recording.op(at)
            if row is not None and row.inplace:
                return at
        return -1

    def comes_from_gradient(self, position: int, node: int) -> bool:
        """Whether what the derivative of a node reads was made from the gradient that came in, not
        from what it had saved."""

        def of_node(at: int) -> list[int]:
            row = self.recording.op(at)
            return self.parents(at) if row is not None and row.backward and row.node == node else []

        rows = (self.recording.op(at) for at in walk([position], of_node))
        return any(row is not None and row.backward and row.node != node for row in rows)

    def negative_determinant(self, position: int) -> int:
        """The row of the determinant that was negative, where a NaN is the one that torch.logdet
        writes for it; else -1."""
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


NORMS = having("norm")
# Operators after which a length of zero is a number of zero still.
_KEEPS_ZERO = MOVES | having("bounds", "extreme") | {"copy", "mul"}
_DEPTH = 16  # operators from the divisor to the vector
_NEAR = 3  # operators by which the vector may differ from what was divided
_SAME_NUMBERS = THROUGH | having("complex_view")
_MOST_ROWS = 400


def measured(around: Neighbourhood, divisor: int) -> set[int]:
    """The rows (and sources) whose length a divisor is; empty if it is no length."""
    found: set[int] = set()
    level, seen = {divisor}, set[int]()
    for _ in range(_DEPTH):
        following: set[int] = set()
        for at in level:
            vectors = (
                set(around.parents(at))
                if around.op_at(at) in NORMS | {"hypot"}
                else rooted(around, at)
            )
            if vectors and nowhere_zero(around, at):
                continue  # what it was multiplied with made the divisor 0
            if vectors:
                found |= vectors
                following |= vectors  # they may be lengths themselves: the norm of norms
            else:
                following |= set(_carriers(around, at))
        seen |= level
        level = following - seen
    return found


def nowhere_zero(around: Neighbourhood, position: int) -> bool:
    """Whether a row is known to hold no zero."""
    stats = around.recording.stats(position)
    return stats is not None and stats.known and not stats.zero


def rooted(around: Neighbourhood, position: int) -> set[int]:
    """The vectors of which a row is the magnitude, or the root of the sum of squares."""
    op, parents = around.op_at(position), around.parents(position)
    if op in {"sqrt", "rsqrt"} | {"pow"} and parents:
        return squared(around, parents[0])
    return set(parents) if op == "abs" and parents and _complex(around, parents[0]) else set()


def squared(
    around: Neighbourhood, position: int, depth: int = _DEPTH, summed: bool = False
) -> set[int]:
    """The vectors whose squares, and nothing else, were added up to make a row; empty if it is no
    such sum."""
    op, parents = around.op_at(position), around.parents(position)
    if not depth or not parents:
        return set()
    if summed and (bases := _square_of(around, position)):
        return bases
    if op in having("inner"):
        return {parents[0]} if _same(around, *parents[:2]) else set()
    if op == "add" and len(parents) > 1:
        terms = [squared(around, p, depth - 1, True) for p in parents]
        return set().union(*terms) if all(terms) else set()
    onward = parents[:1] if op == "sum" else _carriers(around, position)
    return set().union(*(squared(around, p, depth - 1, summed or op == "sum") for p in onward))


def _square_of(around: Neighbourhood, position: int) -> set[int]:
    """What a row is the square of, a weight apart."""
    op, parents = around.op_at(position), around.parents(position)
    if op in ("pow", "square"):
        return set(parents[:1])
    if op != "mul" or len(parents) < 2:
        return set()
    if _same(around, *parents[:2]):
        return {parents[0]}
    return set().union(*(_square_of(around, p) for p in parents))


def _same(around: Neighbourhood, one: int, other: int) -> bool:
    """Whether two rows hold the same elements: one and the same, or made alike from the same, or
    views of these."""
    while around.op_at(one) in MOVES and len(around.parents(one)) == 1:
        one = around.parents(one)[0]
    while around.op_at(other) in MOVES and len(around.parents(other)) == 1:
        other = around.parents(other)[0]
    made = around.op_at(one)
    return one == other or (
        bool(made) and made == around.op_at(other) and around.parents(one) == around.parents(other)
    )


def _carriers(around: Neighbourhood, position: int) -> list[int]:
    """The operands of which a row is zero where they are; an epsilon that is added must have
    vanished."""
    op, parents = around.op_at(position), around.parents(position)
    if op in _KEEPS_ZERO:
        return parents
    return parents[:1] if op == "div" or (op == "add" and _adds_no_less(around, position)) else []


def _adds_no_less(around: Neighbourhood, position: int) -> bool:
    """Whether what an addition adds is a number that is not negative."""
    others = around.parents(position)[1:]
    numbers = [around.recording.value(p) for p in others] + [
        *around.recording.scalars.get(position, ())
    ]
    return all(around.numel_at(p) == 1 for p in others) and all(
        x is not None and x >= 0 for x in numbers
    )


def _complex(around: Neighbourhood, position: int) -> bool:
    row, source = around.recording.op(position), around.recording.sources.get(position)
    dtype = row.dtype if row is not None else source.dtype if source is not None else ""
    return "complex" in str(dtype)


def normalises(around: Neighbourhood, dividend: int, vectors: set[int]) -> bool:
    """Whether a dividend was made, in the step of the division, from what these vectors were made
    from."""
    start = around.recording.starts[around.recording.step_of(around.forward_position)]
    origin = _behind(around, vectors, start, _NEAR, only=_SAME_NUMBERS)
    return not origin.isdisjoint(_behind(around, {dividend}, start, _DEPTH))


def _behind(
    around: Neighbourhood,
    rows: set[int],
    start: int,
    depth: int,
    only: frozenset[str] | None = None,
) -> set[int]:
    """These rows and what they were made from since the row ``start``, as far as by ``only`` these
    operators."""
    found, level = set(rows), set(rows)
    for _ in range(depth):
        inside = (p for p in level if p >= start and (only is None or around.op_at(p) in only))
        level = {parent for p in inside for parent in around.parents(p)} - found
        if len(found) > _MOST_ROWS:
            break
        found |= level
    return found
