"""What stands before and after a failed operation, where that spoils a fix of the operation alone."""

from __future__ import annotations

from nanlab.trace.recording import BACKWARD, FLAGS, LINE, NOGRAD, OP, PHASE, RECOMPUTE, Recording

_MOVES = frozenset("view reshape expand unsqueeze squeeze permute transpose t select slice clone detach".split())

_SHIFTS = frozenset("add clamp clamp_min".split())


def checkpointed(recording: Recording, row: tuple[int, ...]) -> bool:
    """Whether this line ran again in a backward pass, or will: activation checkpointing."""
    return any(other[PHASE] == RECOMPUTE and other[LINE] == row[LINE] for _, other in recording.rows())


def divides(recording: Recording, position: int) -> bool:
    """Whether a result is divided by, or its logarithm taken, as it is."""
    waiting = [position]
    for at in waiting[:8]:
        edges = recording.chunk_of(at).edge_table()
        for call, _, slot in edges[edges[:, 1] == at].tolist():
            row = recording.row(call)
            name = recording.ops.items[row[OP]].rstrip("_") if row is not None and row[PHASE] != BACKWARD else ""
            if (name == "div" and slot == 1) or name in ("reciprocal", "rsqrt", "log"):
                return True
            if name in _MOVES:
                waiting.append(call)
    return False


def trap(recording: Recording, position: int) -> str:
    """What made an operand, where its derivative is infinite whatever comes back: a root at 0."""
    for parent in recording.parents(position):
        at, row = parent, recording.row(parent) if parent >= 0 else None
        while row is not None and recording.ops.items[row[OP]].rstrip("_") in _SHIFTS | _MOVES:
            read = recording.parents(at)
            at = read[0] if read else -1
            row = recording.row(at) if at >= 0 else None
        name = recording.ops.items[row[OP]].rstrip("_") if row is not None else ""
        if row is not None and name == "sqrt" and not row[FLAGS] & NOGRAD and recording.stats(at).zero:
            place = recording.places[row[LINE]]
            return f"the root at line {place[1]} has an infinite derivative at 0; put an epsilon inside it"
    return ""
