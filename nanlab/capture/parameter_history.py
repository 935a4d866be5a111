"""The rows of parameters that are folded stay within a fixed memory, however long the run and wide the model."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from nanlab.trace.recording import Recording

Array = npt.NDArray[Any]
MOST_ROWS = 1_000_000  # rows of folded steps in ``trace.parameters``: some 100 MB
NEAR = 64  # steps before and after the first symptom of which no row is left out
THINNED = (
    "trace.parameters leaves out every second of its older steps, or more of them, for there are too many rows; the first steps, "
    "the latest, and those around the first symptom are all there"
)


def shrink(recording: Recording) -> None:
    """Pack the newest block of rows, and thin the older ones out where there are too many."""
    blocks = recording.folded_parameters
    if not blocks:
        return
    blocks[-1] = packed(blocks[-1])
    if sum(len(block["position"]) for block in blocks) > MOST_ROWS:
        _thin(recording)


def packed(block: dict[str, Array]) -> dict[str, Array]:
    """The same columns in a third of the memory: one number stands for a column of equal ones, one array for equal columns.

    The numbers of statistics are left out: these are gone.
    """
    kept: dict[str, Array] = {}
    for name, column in block.items():
        if name.endswith("_stat"):
            continue
        like = kept.get(f"gradient_{name.removeprefix('used_')}") if name.startswith("used_") else None
        if name.endswith("_numel"):
            like = next((kept[other] for other in kept if other.endswith("_numel")), None)
        if len(column) and (_bits(column) == _bits(column[:1])).all():
            kept[name] = np.broadcast_to(column[:1].copy(), column.shape)
        elif like is not None and np.array_equal(_bits(column), _bits(like)):
            kept[name] = like
        else:
            kept[name] = column.copy()  # it may be a view of all the numbers of these rows
    return kept


def _bits(column: Array) -> Array:
    """Floats as integers, for a NaN equals no other."""
    return np.ascontiguousarray(column).view(np.int64) if column.dtype == np.float64 else column


def _thin(recording: Recording) -> None:
    """Leave out every second step of the older half of the rows, but not of the first block, nor around the first symptom."""
    blocks = recording.folded_parameters
    if THINNED not in recording.notes:
        recording.notes.append(THINNED)
    ends = np.cumsum([len(block["position"]) for block in blocks])
    older = max(int(np.searchsorted(ends, ends[-1] // 2)), 1)
    steps = [np.searchsorted(recording.starts, block["position"], side="right") - 1 for block in blocks[:older]]
    kept = np.unique(np.concatenate(steps))[::2]
    if recording.sinks:
        first = recording.step_of(recording.sinks[0].step_position)
        kept = np.append(kept, np.arange(first - NEAR, first + NEAR + 1))
    for i in range(1, older):
        rows = np.isin(steps[i], kept)
        blocks[i] = packed({name: column[rows] for name, column in blocks[i].items()})
    blocks[1:] = [block for block in blocks[1:] if len(block["position"])]
