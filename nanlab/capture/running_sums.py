"""Running sums: tensors that the program only adds to, step after step, and counts among them."""

from __future__ import annotations

import numpy as np

from nanlab.capture.magnitudes import StepRows
from nanlab.formats import HALF_PRECISION
from nanlab.history import History
from nanlab.operators import having, in_place
from nanlab.trace.recording import BACKWARD, Recording

COUNT_ADDS = frozenset(("add", "sub"))


def counts(rows: StepRows, history: History) -> list[tuple[int, int]]:
    """(number, row) of single numbers to which another was added, and to which the step before had
    added one as well."""
    recording, columns = rows.recording, rows.columns
    if HALF_PRECISION.isdisjoint(recording.dtypes.items):
        return []
    narrow = np.array([d in HALF_PRECISION for d in recording.dtypes.items])[columns.dtype]
    adds = columns.named(recording.ops, COUNT_ADDS) & ~columns.inplace
    single = np.array([s in ((), (1,)) for s in recording.shapes.items])[columns.shape]
    found = []
    for position in (np.flatnonzero(narrow & adds & single) + rows.start).tolist():
        operands = recording.operands(position)
        if len(operands) != 1 or not any(recording.scalars.get(position, (1.0,))):
            continue
        owner = history.counts.pop(operands[0][0], None)
        if owner is not None:
            owner = _named_count(recording, position) if owner < 0 else owner
            found.append((owner, position))
        elif operands[0][0] >= rows.start:
            continue
        history.counts[position] = -1 if owner is None else owner
    for position in [p for p in history.counts if p < rows.start]:  # it went no further
        del history.counts[position]
    return found


def _named_count(recording: Recording, position: int, what: str = "count") -> int:
    """The number of a count or sum that is new."""
    row = recording.op(position)
    assert row is not None
    return recording.new_owner(f"the {what} at line {row.line}", "buffer")


ADDS_IN_PLACE = in_place(having("adds", "accumulates"))
PASSES = having("same_elements", "parts", "picks") | {"copy_"}
WRITES_BACK = in_place(having("assigns"))
NEW = -1  # it may be a sum: the step before did not add to it
UNNAMED = -2  # it is one: the step before did, for the first time


def sums(rows: StepRows, history: History, written: dict[int, int]) -> dict[int, int]:
    """Number of the sum by row, of additions in place to half-precision tensors, elements of them
    too.

    A sum was there before the step, and nothing but additions has changed it since the last one.
    written: number of the buffer or parameter by row. What is neither gets a number and a name of
    its own.
    """
    recording, columns = rows.recording, rows.columns
    before, history.sums = history.sums, {}
    if HALF_PRECISION.isdisjoint(recording.dtypes.items):
        return {}
    narrow = np.array([d in HALF_PRECISION for d in recording.dtypes.items])[columns.dtype]
    plain = narrow & (columns.phase != BACKWARD) & (columns.node < 0)
    adds = plain & columns.named(recording.ops, ADDS_IN_PLACE) & columns.inplace
    for step in reversed(history.optimizer_steps):
        if step.end <= rows.start:
            break
        adds[max(0, step.position - rows.start) : max(0, step.end - rows.start)] = False
    if not adds.any():
        return {}
    passes = plain & columns.named(recording.ops, PASSES | WRITES_BACK)
    now: dict[int, int] = {}  # number of the sum by row
    found: dict[int, int] = {}
    for position in (np.flatnonzero(adds | passes) + rows.start).tolist():
        own = [source for source, _ in recording.operands(position)]
        if not own:
            continue
        at = now.get(own[0])
        if at is None and own[0] < rows.start:
            at = before.get(own[0], NEW)
            at = UNNAMED if own[0] in before and at == NEW else at
        row = recording.op(position)
        if at is None or row is None:
            continue
        if adds[position - rows.start]:
            if not _adds_something(recording, position, own):
                continue
            owner = written.get(position, at)
            if owner >= 0 and recording.parameter_kinds[owner] == "parameter":
                continue
            owner = _named_count(recording, position, "sum") if owner == UNNAMED else owner
            if owner >= 0:
                found[position] = owner
            now[position] = owner
        elif row.name in WRITES_BACK or (row.name == "copy_" and len(own) > 1):
            if own[-1] in now:  # elements that were taken out, and added to
                now[position] = now[own[-1]]
        else:
            now[position] = at
    history.sums = now
    return found


def _adds_something(recording: Recording, position: int, own: list[int]) -> bool:
    """Whether a tensor or a number other than zero is added."""
    if len(own) == 1:
        return any(recording.scalars.get(position, ()))
    added = recording.stats(own[-1])
    return added is not None and added.zero < added.numel
