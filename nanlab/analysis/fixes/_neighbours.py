"""What stands before and after a failed operation, where that spoils a fix of the operation
alone."""

from __future__ import annotations

import math
from itertools import islice

from nanlab.analysis.fixes._calls import Calls
from nanlab.trace.names import Span
from nanlab.trace.recording import (
    BACKWARD,
    CALL,
    FLAGS,
    LINE,
    NODE,
    NOGRAD,
    OP,
    PHASE,
    RECOMPUTE,
    VIEW,
    Recording,
)

MOVES = frozenset(
    """view reshape expand unsqueeze squeeze permute transpose t select slice clone detach
    diagonal""".split()
)

_SHIFTS = frozenset("add clamp clamp_min".split())
_JOINS = frozenset("stack cat".split())
_FACTORS = frozenset("linalg_cholesky_ex linalg_cholesky cholesky".split())
_LOGARITHMS = frozenset("log log2 log10".split())
# Where one of these is infinite so is its derivative: what comes back is inf, or NaN where it is
# multiplied by 0.
_POLES = {
    **dict.fromkeys(("div", "reciprocal"), "quotient"),
    **dict.fromkeys(("exp", "expm1", "sinh", "cosh"), "exponential"),
    "rsqrt": "root",
    "pow": "power",
    **dict.fromkeys(("atanh", "erfinv", "logit"), "inverse function"),
}
_LINEAR = frozenset("mul div neg rsub sub".split())  # by a number
_MOST = 16


def checkpointed(recording: Recording, row: tuple[int, ...]) -> bool:
    """Whether this line ran again in a backward pass, or will: activation checkpointing."""
    return any(
        other[PHASE] == RECOMPUTE and other[LINE] == row[LINE] for _, other in recording.rows()
    )


def calls_like(recording: Recording, position: int) -> Calls:
    """The calls of this operator in one run of its line: which take tensors where this one does,
    and which fail as it does.

    ``r + g * m * x`` with a number ``g`` has two products, and only the second is one of two
    tensors.
    """
    calls = [
        *reversed(_same_run(recording, position, -1)),
        position,
        *_same_run(recording, position, 1),
    ]
    own = {slot for _, slot in recording.operands(position)}
    alike = tuple(own <= {slot for _, slot in recording.operands(call)} for call in calls)
    failed = [
        at
        for at, same in zip(calls, alike, strict=True)
        if at == position or (same and _fails(recording, at))
    ]
    spans = (_span(recording, at) for at in failed)
    return Calls(
        alike,
        tuple(s for s in spans if s is not None),
        _span(recording, position) if _alone(recording, position) else None,
    )


def _span(recording: Recording, position: int) -> Span | None:
    row = recording.row(position)
    return (
        recording.spans[row[LINE]] if row is not None and row[LINE] < len(recording.spans) else None
    )


def _fails(recording: Recording, position: int) -> bool:
    """Whether a call has a non-finite result or derivative that it did not come by from outside, or
    an operand with a 0."""
    row = recording.row(position)
    if row is None:
        return False
    if position in recording.bad:
        return True
    for run in recording.node_runs if row[NODE] >= 0 else ():
        if run.node == row[NODE] and not recording.bad.isdisjoint(run.given):
            read = [recording.stats(source) for source, _ in recording.operands(position)]
            return recording.bad.isdisjoint(run.taken) or any(
                s is not None and bool(s.zero) for s in read
            )
    return False


def _alone(recording: Recording, position: int) -> bool:
    """Whether nothing but this operator was computed at its place, as far as the rows of its step
    tell."""
    row = recording.row(position)
    if row is None:
        return False
    table = recording.chunk_of(position).table()
    there = table[
        (table[:, LINE] == row[LINE])
        & (table[:, PHASE] != BACKWARD)
        & (table[:, FLAGS] & VIEW == 0)
    ]
    return bool((there[:, OP] == row[OP]).all())


def _same_run(recording: Recording, position: int, direction: int) -> list[int]:
    """The calls of the same operator next to a row, up to the first row of another line."""
    row, found, at = recording.row(position), list[int](), position + direction
    while (
        row is not None
        and len(found) < _MOST
        and at >= 0
        and (other := recording.row(at)) is not None
    ):
        if recording.places[other[LINE]] != recording.places[row[LINE]]:
            break
        if other[OP] == row[OP] and other[CALL] == at:
            found.append(at)
        at += direction
    return found


def products_with_zeros(recording: Recording, position: int) -> frozenset[Span] | None:
    """Where the step of a row multiplies tensors of which one has zeros, as a mask has; None where
    columns are not known."""
    table, where = recording.chunk_of(position).table(), recording.chunk_of(position).where()
    of_two = (table[:, OP] == recording.ops.ids.get("mul", -1)) & (table[:, PHASE] != BACKWARD)
    found = {_span(recording, at) for at in where[of_two].tolist() if _has_zeros(recording, at)}
    return frozenset(s for s in found if s is not None) if any(recording.spans) else None


def _has_zeros(recording: Recording, position: int) -> bool:
    read = [recording.stats(source) for source, _ in recording.operands(position)]
    return len(read) > 1 and any(s is not None and bool(s.zero) for s in read)


def divides(recording: Recording, position: int) -> bool:
    """Whether a result is divided by, or its logarithm taken, as it is."""
    waiting = [position]
    for at in islice(waiting, _MOST):
        edges = recording.chunk_of(at).edge_table()
        for call, _, slot in edges[edges[:, 1] == at].tolist():
            row = recording.row(call)
            name = (
                recording.ops.items[row[OP]].rstrip("_")
                if row is not None and row[PHASE] != BACKWARD
                else ""
            )
            if (name == "div" and slot == 1) or name in ("reciprocal", "rsqrt", "log"):
                return True
            if name in MOVES:
                waiting.append(call)
    return False


_KEEP_ZERO = MOVES | frozenset("square pow abs mul sqrt sum".split())


def logarithm_after(recording: Recording, position: int) -> int:
    """The line of a logarithm of what comes of a result, which is 0 where the result is; 0: none
    was recorded."""
    waiting = [position]
    for at in islice(waiting, _MOST):
        edges = recording.chunk_of(at).edge_table()
        for call, _, slot in edges[edges[:, 1] == at].tolist():
            row = recording.row(call)
            name = (
                recording.ops.items[row[OP]].rstrip("_")
                if row is not None and row[PHASE] != BACKWARD
                else ""
            )
            if row is not None and name in ("log", "log2", "log10"):
                line: int = recording.places[row[LINE]][1]
                return line
            if (
                name in _KEEP_ZERO
                or (name == "div" and slot == 0)
                or (name == "add" and _adds_nothing(recording, call))
            ):
                waiting.append(call)
    return 0


def _adds_nothing(recording: Recording, call: int) -> bool:
    """Whether a sum is with a Python number only, and that is 0, or not recorded: an epsilon that
    may be 0."""
    return len(recording.parents(call)) < 2 and not any(recording.scalars.get(call, ()))


def trap(recording: Recording, position: int) -> str:
    """What made an operand, where its derivative is infinite or NaN whatever comes back: "" where
    nothing did.

    A root at 0, a quotient or exponential that is infinite, a Cholesky factor with a 0 on its
    diagonal, a product with an infinite factor.
    """
    waiting = [(parent, False) for parent in recording.parents(position)]
    for at, zero in islice(waiting, _MOST):
        row = recording.row(at) if at >= 0 else None
        if row is None or row[FLAGS] & NOGRAD:
            continue
        name = recording.ops.items[row[OP]].rstrip("_")
        if name == "detach":
            continue
        if name in _SHIFTS | MOVES | _JOINS:
            parents = recording.parents(at)
            stats = recording.stats(at) if name == "diagonal" else None
            zero = zero or (stats is not None and bool(stats.zero))
            waiting += [
                (p, zero) for p in (dict.fromkeys(parents) if name in _JOINS else parents[:1])
            ]
        elif found := _trapped(recording, at, row, name, zero):
            return found
        elif name in _LINEAR and len(recording.parents(at)) == 1:
            waiting.append((recording.parents(at)[0], False))
    return ""


def _trapped(recording: Recording, at: int, row: tuple[int, ...], name: str, zero: bool) -> str:
    """zero: whether the diagonal that was taken of it has a 0."""
    if row[NODE] < 0:  # no gradient comes back through it
        return ""
    line = recording.places[row[LINE]][1]
    if name == "sqrt" and recording.stats(at).zero:
        return f"the root at line {line} has an infinite derivative at 0; put an epsilon inside it"
    if name == "pow" and _fractional(recording, at):
        return f"the power at line {line} has an infinite derivative at 0; keep its base above 0"
    if name in ("acos", "asin") and _at_edge(recording, at):
        return (
            f"the {name} at line {line} has an infinite derivative at the edge of its domain; keep"
            " its argument inside"
        )
    if name in _FACTORS and zero:
        return (
            f"the Cholesky factor of line {line} is singular, and so is its derivative; add to the"
            " matrix's diagonal"
        )
    if name in _LOGARITHMS and row[NODE] >= 0 and recording.stats(at).neginf:
        return (
            f"the logarithm at line {line} has an infinite derivative at 0; keep its argument"
            " above 0"
        )
    if name in _POLES and row[NODE] >= 0 and _infinite(recording, at, name):
        return (
            f"the {_POLES[name]} at line {line} is infinite, and so is its derivative; keep what it"
            " is taken of in range"
        )
    if name == "mul" and _infinite_factor(recording, at):
        return (
            f"the product at line {line} has an infinite factor, so that its derivative is not"
            " finite either"
        )
    return ""


def _infinite(recording: Recording, position: int, name: str) -> bool:
    """Whether a result is infinite, or 0 / 0, where finite operands made it so."""
    stats = recording.stats(position)
    if stats.posinf or stats.neginf:
        return True
    parents = recording.parents(position)
    divisor = recording.stats(parents[1]) if name == "div" and len(parents) > 1 else None
    return bool(stats.nan) and divisor is not None and bool(divisor.zero)


def _fractional(recording: Recording, position: int) -> bool:
    """Whether a result is a power between 0 and 1 of a base that has a 0: told by its smallest
    other element."""
    after, parents = recording.stats(position), recording.parents(position)
    before = recording.stats(parents[0]) if len(parents) == 1 else None
    if (
        before is None
        or not before.zero
        or before.zero != after.zero
        or not before.absmin
        or not after.absmin
    ):
        return False
    return before.absmin != 1.0 and 0.0 < math.log(after.absmin) / math.log(before.absmin) < 0.99


def _at_edge(recording: Recording, position: int) -> bool:
    """Whether some argument is 1 or -1, where the result has a gradient."""
    row, parents = recording.row(position), recording.parents(position)
    stats = recording.stats(parents[0]) if parents else None
    if row is None or row[NODE] < 0 or stats is None or stats.max is None or stats.min is None:
        return False
    return bool(stats.max >= 1.0 or stats.min <= -1.0)


def _infinite_factor(recording: Recording, at: int) -> bool:
    """Whether one factor is infinite, and another has a gradient."""
    parents = recording.parents(at)
    for infinite in parents:
        stats = recording.stats(infinite)
        if stats is not None and (stats.posinf or stats.neginf):
            rows = (recording.row(p) for p in parents if p >= 0 and p != infinite)
            return any(r is not None and r[NODE] >= 0 for r in rows)
    return False
