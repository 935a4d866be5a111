"""Gradients that are zero throughout, and the operation at which the signal died. Looked for when a
step ends."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from nanlab.capture.magnitudes import StepRows, place_of
from nanlab.history import Dead, History
from nanlab.operators import base_name, having
from nanlab.trace.recording import BACKWARD, NODE, OP, PHASE, Recording

MOST_VISITS = 2000  # rows that are walked over for one gradient
MOST_LOOKS = 4  # steps in which the place is looked for

Why = Literal["blocked", "flat", "choice", "saturated", "value"]
FLAT = having("flat")
# The other alternative was taken throughout, or the value stands beyond a bound.
CHOICES = having("bounds", "masks", "picks", "parts", "extreme", "assigns", "ranks") | {
    "relu",
    "threshold",
}
PRODUCTS = having("multiplies", "divides") - having("matmul", "composed_product", "dot", "layer")
CANCELS = having("adds", "sums", "matmul", "dot")
# What they make of a gradient is zero by cancellation, or because an operand is.
# A gradient that is the same for all of a row cancels in theirs.
SHARES = having("softmax", "normalises")
LINEAR = (CANCELS | having("layer", "deviation", "moves") | {"neg"}) - PRODUCTS


def note_dead(rows: StepRows, history: History, gradients: dict[int, int]) -> None:
    """Count the steps in which a parameter got a gradient, and those in which all of it was zero.

    gradients: row of the gradient by number of the parameter.
    """
    recording = rows.recording
    zero: set[int] | None = None
    for owner, gradient in gradients.items():
        known = history.dead.get(owner)
        if known is not None and known.alive:
            continue
        stats = recording.stats(gradient)
        if stats is None or not stats.numel:
            continue
        if stats.zero < stats.numel:
            history.dead[owner] = Dead(alive=True)
            continue
        if known is not None and (known.steps >= MOST_LOOKS or known.blockers):
            known.steps += 1
            continue
        if zero is None:
            zero = set((np.flatnonzero(rows.all_zero()) + rows.start).tolist())
        found = _died(recording, gradient, zero)
        known = history.dead.setdefault(owner, Dead())
        known.steps += 1
        if found is None:
            known.unknown += 1
        elif known.at is None:
            place = place_of(recording, found.position)
            assert place is not None  # the step that has just ended is never folded
            known.at, known.why, known.first = replace(place, op=found.op), found.why, gradient
            known.numel = recording.stats(found.position).numel
            known.blockers = found.blockers


@dataclass(frozen=True, slots=True)
class _Death:
    position: int
    op: str  # of the forward pass
    why: Why
    blockers: tuple[str, ...] = ()  # parameters that are zero, and that it is multiplied by


def _died(recording: Recording, gradient: int, zero: set[int]) -> _Death | None:
    """Where the signal died on the way to a gradient, and why; None where the program wrote the
    zero."""
    ends: list[int] = []
    without: list[int] = []  # rows that read nothing of the backward pass: zeros_like
    seen, waiting = {gradient}, [gradient]
    for position in waiting:
        row = recording.row(position) if position >= 0 else None
        if row is None or row[PHASE] != BACKWARD or len(seen) > MOST_VISITS:
            continue
        read = [p for p in recording.parents(position) if _of_backward(recording, p)]
        if not read:
            without.append(position)
        elif any(p not in zero and _is_gradient(recording, p, row[NODE]) for p in read):
            ends.append(position)
        new = [p for p in read if p in zero and p not in seen]
        seen.update(new)
        waiting += new
    found = [_why(recording, end, zero) for end in sorted(ends or without)]
    # where one cancels the others are not to blame
    deaths = [death for death in found if death is not None]
    if not deaths or len(deaths) < len(found):
        return None
    blockers = tuple(dict.fromkeys(name for death in deaths for name in death.blockers))
    return next((replace(d, blockers=blockers) for d in deaths if d.blockers), deaths[0])


def _is_gradient(recording: Recording, position: int, node: int) -> bool:
    """Whether a row of the backward pass was computed from the gradient that came in to a node."""
    seen, waiting = {position}, [position]
    for here in waiting:
        row = recording.row(here)
        if row is not None and row[NODE] != node:
            return True
        new = {p for p in recording.parents(here) if _of_backward(recording, p)} - seen
        seen |= new
        waiting += new
    return False


def _of_backward(recording: Recording, position: int) -> bool:
    row = recording.row(position) if position >= 0 else None
    return row is not None and row[PHASE] == BACKWARD


def _why(recording: Recording, end: int, zero: set[int]) -> _Death | None:
    row = recording.row(end)
    info = recording.nodes.get(row[NODE]) if row is not None and row[NODE] >= 0 else None
    if row is None or info is None or info.op < 0 or info.custom:
        return None
    op = base_name(recording.ops.items[info.op])
    if op in PRODUCTS | LINEAR and (blockers := _blockers(recording, end, row[NODE], zero)):
        return _Death(end, op, "blocked", blockers)
    if _name(recording, end) in CANCELS:
        return None
    if op in FLAT:
        return _Death(end, op, "flat")
    if op in CHOICES:
        return _Death(end, op, "choice")
    if op in PRODUCTS:
        other = next(
            (p for p in recording.parents(end) if p in zero and not _of_backward(recording, p)),
            None,
        )
        lost = None if other is None else _vanished(recording, other, zero)
        return None if lost is None else _Death(lost, _name(recording, lost), "value")
    if op in LINEAR or (op in SHARES and not _one_hot(recording, info.position)):
        return None
    if info.position in zero:  # of an operand that is 0 itself it is the right result
        lost = _vanished(recording, info.position, zero)
        return None if lost is None else _Death(lost, _name(recording, lost), "value")
    return _Death(end, op, "saturated")


def _blockers(recording: Recording, end: int, node: int, zero: set[int]) -> tuple[str, ...]:
    """Parameters that are zero throughout, which make the other factor of a gradient zero."""
    seen: set[int] = set()
    waiting = [
        p
        for p in recording.parents(end)
        if p < 0
        or (p in zero and not (_of_backward(recording, p) and _is_gradient(recording, p, node)))
    ]
    found: dict[str, None] = {}
    for position in waiting:
        source = recording.sources.get(position)
        if source is not None:
            stats = recording.stats(position)
            if source.kind == "parameter" and stats is not None and stats.zero == stats.numel:
                found.setdefault(source.name)
        elif position in zero and _name(recording, position) in LINEAR | PRODUCTS:
            new = [p for p in recording.parents(position) if (p < 0 or p in zero) and p not in seen]
            seen.update(new)
            waiting += new[:MOST_VISITS]
    return tuple(found)


def _one_hot(recording: Recording, position: int) -> bool:
    """Whether a softmax gave 1 to one value of each row and 0 to the others."""
    stats = recording.stats(position)
    return (
        stats is not None
        and stats.max == 1.0
        and stats.mean * stats.numel == stats.numel - stats.zero
    )


def _name(recording: Recording, position: int) -> str:
    row = recording.row(position)
    return "" if row is None else base_name(recording.ops.items[row[OP]])


def _vanished(recording: Recording, position: int, zero: set[int]) -> int | None:
    """The row in which a value of the forward pass became zero throughout; None where it came from
    outside or was chosen."""
    for _ in range(MOST_VISITS):
        row = recording.row(position) if position >= 0 else None
        if row is None:
            return None
        parents = recording.parents(position)
        before = next((p for p in parents if p in zero), None)
        if before is None:
            op = _name(recording, position)
            chosen = op in CHOICES | LINEAR | FLAT or not parents
            alive = all((s := recording.stats(p)) is not None and s.zero < s.numel for p in parents)
            return None if chosen or not alive else position
        position = before
    return None
