"""Whether a divisor is a length: a norm, or the root of a sum of squares; and whether its own vector is divided by it."""

from __future__ import annotations

from nanlab.analysis.leaves import MOVES
from nanlab.operators import having
from nanlab.rules._neighbourhood import THROUGH, Neighbourhood

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
            vectors = set(around.parents(at)) if around.op_at(at) in NORMS | {"hypot"} else rooted(around, at)
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


def squared(around: Neighbourhood, position: int, depth: int = _DEPTH, summed: bool = False) -> set[int]:
    """The vectors whose squares, and nothing else, were added up to make a row; empty if it is no such sum."""
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
    """Whether two rows hold the same elements: one and the same, or made alike from the same, or views of these."""
    while around.op_at(one) in MOVES and len(around.parents(one)) == 1:
        one = around.parents(one)[0]
    while around.op_at(other) in MOVES and len(around.parents(other)) == 1:
        other = around.parents(other)[0]
    made = around.op_at(one)
    return one == other or (bool(made) and made == around.op_at(other) and around.parents(one) == around.parents(other))


def _carriers(around: Neighbourhood, position: int) -> list[int]:
    """The operands of which a row is zero where they are; an epsilon that is added must have vanished."""
    op, parents = around.op_at(position), around.parents(position)
    if op in _KEEPS_ZERO:
        return parents
    return parents[:1] if op == "div" or (op == "add" and _adds_no_less(around, position)) else []


def _adds_no_less(around: Neighbourhood, position: int) -> bool:
    """Whether what an addition adds is a number that is not negative."""
    others = around.parents(position)[1:]
    numbers = [around.recording.value(p) for p in others] + [*around.recording.scalars.get(position, ())]
    return all(around.numel_at(p) == 1 for p in others) and all(x is not None and x >= 0 for x in numbers)


def _complex(around: Neighbourhood, position: int) -> bool:
    row, source = around.recording.op(position), around.recording.sources.get(position)
    dtype = row.dtype if row is not None else source.dtype if source is not None else ""
    return "complex" in str(dtype)


def normalises(around: Neighbourhood, dividend: int, vectors: set[int]) -> bool:
    """Whether a dividend was made, in the step of the division, from what these vectors were made from."""
    start = around.recording.starts[around.recording.step_of(around.forward_position)]
    origin = _behind(around, vectors, start, _NEAR, only=_SAME_NUMBERS)
    return not origin.isdisjoint(_behind(around, {dividend}, start, _DEPTH))


def _behind(
    around: Neighbourhood, rows: set[int], start: int, depth: int, only: frozenset[str] | None = None
) -> set[int]:
    """These rows and what they were made from since the row ``start``, as far as by ``only`` these operators."""
    found, level = set(rows), set(rows)
    for _ in range(depth):
        inside = (p for p in level if p >= start and (only is None or around.op_at(p) in only))
        level = {parent for p in inside for parent in around.parents(p)} - found
        if len(found) > _MOST_ROWS:
            break
        found |= level
    return found
