"""Vectors behind a divisor: whether it is the norm of what was divided."""

from __future__ import annotations

from collections.abc import Iterable

from nanlab.analysis.provenance import MOVES
from nanlab.findings.fault import THROUGH, Fault
from nanlab.operators import having
from nanlab.trace.op import walk

NORMS = having("norm")
# Operators after which a length of zero is a number of zero still.
_KEEPS_ZERO = MOVES | having("bounds", "extreme") | {"copy", "mul"}
_DEPTH = 16  # operators from the divisor to the vector
_NEAR = 3  # operators by which the vector may differ from what was divided
_SAME_NUMBERS = THROUGH | having("complex_view")
_MOST_ROWS = 400


def measured(fault: Fault, divisor: int) -> set[int]:
    """The vectors (rows or sources) whose norm a divisor is; empty if it is no norm."""
    found: set[int] = set()

    def onward(at: int) -> Iterable[int]:
        is_norm = fault.op_at(at) in NORMS | {"hypot"}
        vectors = set(fault.parents(at)) if is_norm else rooted(fault, at)
        if vectors and nowhere_zero(fault, at):
            return ()  # what it was multiplied with made the divisor 0
        found.update(vectors)
        return vectors or _carriers(fault, at)  # vectors may be lengths too: the norm of norms

    list(walk([divisor], onward, depth=_DEPTH))
    return found


def nowhere_zero(fault: Fault, position: int) -> bool:
    """Whether a row is known to hold no zero."""
    stats = fault.recording.stats(position)
    return stats is not None and stats.known and not stats.zero


def rooted(fault: Fault, position: int) -> set[int]:
    """The vectors whose magnitude, or root of the sum of squares, a row is."""
    op, parents = fault.op_at(position), fault.parents(position)
    if op in having("powers") and parents:
        return squared(fault, parents[0])
    return set(parents) if op == "abs" and parents and _complex(fault, parents[0]) else set()


def squared(fault: Fault, position: int, depth: int = _DEPTH, summed: bool = False) -> set[int]:
    """The vectors whose sum of squares a row is; empty if it is no such sum."""
    op, parents = fault.op_at(position), fault.parents(position)
    if not depth or not parents:
        return set()
    if summed and (bases := _square_of(fault, position)):
        return bases
    if op in having("inner"):
        return {parents[0]} if _same(fault, *parents[:2]) else set()
    if op == "add" and len(parents) > 1:
        terms = [squared(fault, p, depth - 1, True) for p in parents]
        return set().union(*terms) if all(terms) else set()
    onward = parents[:1] if op == "sum" else _carriers(fault, position)
    return set().union(*(squared(fault, p, depth - 1, summed or op == "sum") for p in onward))


def _square_of(fault: Fault, position: int) -> set[int]:
    """The base whose square a row is, up to a weight."""
    op, parents = fault.op_at(position), fault.parents(position)
    if op in ("pow", "square"):
        return set(parents[:1])
    if op != "mul" or len(parents) < 2:
        return set()
    if _same(fault, *parents[:2]):
        return {parents[0]}
    return set().union(*(_square_of(fault, p) for p in parents))


def _same(fault: Fault, one: int, other: int) -> bool:
    """Whether two rows hold the same elements, as views or by the same operation."""
    one, other = _unmoved(fault, one), _unmoved(fault, other)
    made = [(fault.op_at(at), fault.parents(at)) for at in (one, other)]
    return one == other or (bool(made[0][0]) and made[0] == made[1])


def _unmoved(fault: Fault, at: int) -> int:
    """The row that another is a view or a copy of."""
    while fault.op_at(at) in MOVES and len(fault.parents(at)) == 1:
        at = fault.parents(at)[0]
    return at


def _carriers(fault: Fault, position: int) -> list[int]:
    """Operands that are zero where a row is, an absorbed epsilon left out."""
    op, parents = fault.op_at(position), fault.parents(position)
    if op in _KEEPS_ZERO:
        return parents
    return parents[:1] if op == "div" or (op == "add" and _adds_no_less(fault, position)) else []


def _adds_no_less(fault: Fault, position: int) -> bool:
    """Whether an addition adds only non-negative numbers."""
    others = fault.parents(position)[1:]
    numbers = (*map(fault.recording.value, others), *fault.recording.scalars.get(position, ()))
    single = all(fault.numel_at(p) == 1 for p in others)
    return single and all(x is not None and x >= 0 for x in numbers)


def _complex(fault: Fault, position: int) -> bool:
    source = fault.recording.sources.get(position)
    dtype = fault.recording.at(position).dtype if source is None else source.dtype
    return "complex" in str(dtype)


def normalises(fault: Fault, dividend: int, vectors: set[int]) -> bool:
    """Whether a dividend and these vectors share an origin in the division's step."""
    start = fault.recording.starts[fault.recording.step_of(fault.forward_position)]
    origin = _behind(fault, vectors, start, _NEAR, only=_SAME_NUMBERS)
    return not origin.isdisjoint(_behind(fault, {dividend}, start, _DEPTH))


def _behind(
    fault: Fault, rows: set[int], start: int, depth: int, only: frozenset[str] | None = None
) -> set[int]:
    """These rows and their ancestors from row ``start`` on, through ``only`` these operators."""

    def onward(at: int) -> list[int]:
        inside = at >= start and (only is None or fault.op_at(at) in only)
        return fault.parents(at) if inside else []

    return set(walk(rows, onward, _MOST_ROWS, depth))
