"""Counts in half precision that are made anew in each step: ``self.steps = self.steps + 1``."""

from __future__ import annotations

import numpy as np

from nanlab.capture.magnitudes import StepRows
from nanlab.formats import HALF_PRECISION
from nanlab.history import History
from nanlab.trace.recording import Recording

ADDS = frozenset(("add", "sub"))


def counts(rows: StepRows, history: History) -> list[tuple[int, int]]:
    """(number, row) of single numbers to which another was added, and to which the step before had added one as well."""
    recording, columns = rows.recording, rows.columns
    if HALF_PRECISION.isdisjoint(recording.dtypes.items):
        return []
    narrow = np.array([d in HALF_PRECISION for d in recording.dtypes.items])[columns.dtype]
    adds = columns.named(recording.ops, ADDS) & ~columns.inplace
    single = np.array([s in ((), (1,)) for s in recording.shapes.items])[columns.shape]
    found = []
    for position in (np.flatnonzero(narrow & adds & single) + rows.start).tolist():
        operands = recording.operands(position)
        if len(operands) != 1 or not any(recording.scalars.get(position, (1.0,))):
            continue
        owner = history.counts.pop(operands[0][0], None)
        if owner is not None:
            owner = _named(recording, position) if owner < 0 else owner
            found.append((owner, position))
        elif operands[0][0] >= rows.start:
            continue
        history.counts[position] = -1 if owner is None else owner
    for position in [p for p in history.counts if p < rows.start]:  # it went no further
        del history.counts[position]
    return found


def _named(recording: Recording, position: int) -> int:
    """The number of a count that is new."""
    row = recording.op(position)
    assert row is not None
    return recording.new_owner(f"the count at line {row.line}", "buffer")
