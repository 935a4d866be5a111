"""Moving averages of the parameters that live outside of every module: tensors of the program that follow them, step after step."""

from __future__ import annotations

from bisect import bisect_left
from operator import attrgetter

import numpy as np

from nanlab.capture.flushes import CASTS, outputs
from nanlab.capture.magnitudes import StepRows
from nanlab.formats import HALF_PRECISION
from nanlab.history import History
from nanlab.operators import having, in_place, with_forms
from nanlab.trace.recording import (
    BACKWARD,
    FORWARD,
    OPTIMIZER,
    OTHER,
    Recording,
)

FOLLOWS = in_place(having("blends", lists=True))
BLENDS = with_forms("add", "lerp", lists=True)
SCALES = in_place(with_forms("mul", lists=True))  # what may be done to an average before the parameter is added
DUPLICATES = having("copies") - having("casts")
CARRIES = having("copies") | CASTS | with_forms("mul", "sub", lists=True) | {"view"}
MOST_HOPS = 12
STEPS_BACK = 2  # training steps in which a parameter that is averaged was updated last
MOST = 2000  # averages
UNNAMED = -1  # it may be an average: a blend of something with a parameter


def averages(rows: StepRows, history: History, written: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """(number, row) of the updates of half-precision averages that are neither parameter nor buffer.

    An average was there before the step, and what is added to it comes from a parameter: in place, or blended into a new
    tensor that is blended again. It gets a number and a name of its own, as if it were a buffer: "the average of w".
    """
    recording, known = rows.recording, {position for _, position in written}
    found: list[tuple[int, int]] = []
    latest: dict[int, int] | None = None
    for position in _candidates(rows, history):
        if position in known or len(history.averages) > MOST:
            continue
        if latest is None:
            latest = _latest(history, rows.end, len(recording.parameter_names))
        parts = _parts(rows, position, latest)
        if parts is None:
            continue
        before, name = parts
        owner = history.averages.pop(before, None)
        inplace = bool(rows.columns.inplace[position - rows.start])
        if owner is None and not inplace:
            history.averages[position] = UNNAMED
            continue
        owner = _named(recording, position, name) if owner is None or owner == UNNAMED else owner
        history.averages[position] = owner
        _is_update(recording, position)
        found.append((owner, position))
    _follow_copies(rows, history)
    return found


def is_absorbed(recording: Recording, position: int) -> bool | None:
    """Whether a blend into a new tensor is what the average was before, though the parameter is not; None where that is not known."""
    after = recording.stats(position)
    whole = [recording.stats(_unscaled(recording, part)) for part in _own(recording, position)[:2]]
    if after is None or len(whole) < 2 or any(of is None for of in whole) or whole[0] == whole[1]:
        return None
    return any(of == after for of in whole)


def _candidates(rows: StepRows, history: History) -> list[int]:
    """Rows of half precision, outside of graphs and optimizers, that add something in place, or add two values."""
    names, dtypes, columns = rows.recording.ops, rows.recording.dtypes.items, rows.columns
    if HALF_PRECISION.isdisjoint(dtypes):
        return []
    narrow = np.array([d in HALF_PRECISION for d in dtypes])[columns.dtype]
    plain = narrow & (columns.phase != BACKWARD) & (columns.node < 0)
    adds, blends = columns.named(names, FOLLOWS), columns.named(names, BLENDS)
    chosen = plain & ((adds & columns.inplace) | (blends & ~columns.inplace))
    for step in reversed(history.optimizer_steps):
        if step.end <= rows.start:
            break
        chosen[max(0, step.position - rows.start) : max(0, step.end - rows.start)] = False
    return [int(i) + rows.start for i in np.flatnonzero(chosen)]


def _parts(rows: StepRows, position: int, latest: dict[int, int]) -> tuple[int, str] | None:
    """(row or source of an average before, name of the parameter that is added to it); None where it is no such sum."""
    recording, own = rows.recording, _own(rows.recording, position)[:2]
    if len(own) < 2:
        return None
    if rows.columns.inplace[position - rows.start]:
        before, name = _before(rows, own[0]), _followed(recording, own[1], latest)
        return (before, name) if before is not None and name else None
    for one, other in (own, own[::-1]):
        before, name = _unscaled(recording, one), _followed(recording, other, latest)
        if before < rows.start and before not in latest and name and not _followed(recording, one, latest):
            return before, name
    return None


def _follow_copies(rows: StepRows, history: History) -> None:
    """Blends of which a copy is kept: it is the copy that is blended again."""
    fresh = [p for p in history.averages if p >= rows.start]
    if not fresh:
        return
    copies = rows.columns.named(rows.recording.ops, DUPLICATES)
    for position in (np.flatnonzero(copies) + rows.start).tolist():
        made = rows.recording.operands(position)
        if made and made[0][0] in history.averages and made[0][0] >= rows.start:
            history.averages[position] = history.averages.pop(made[0][0])


def _unscaled(recording: Recording, at: int) -> int:
    """The row or source of what was multiplied by a number, or that of the value itself."""
    row = recording.op(at)
    if row is None or row.name not in ("mul", "_foreach_mul"):
        return at
    own = _own(recording, at)
    return own[0] if own else at


def _own(recording: Recording, position: int) -> list[int]:
    """What a row was computed from; of a call on lists, the members in its place."""
    row = recording.op(position)
    if row is None:
        return []
    targets = outputs(recording, row.call)
    return [source for source, slot in recording.operands(position) if slot % targets == row.output]


def _before(rows: StepRows, at: int) -> int | None:
    """The row or source of a tensor as the step found it; None where the step made it."""
    recording = rows.recording
    for _ in range(MOST_HOPS):
        if at < rows.start:
            return at
        row = recording.op(at)
        own = _own(recording, at)
        if row is None or not own or row.name not in SCALES:
            return None
        at = own[0]
    return None


def _latest(history: History, end: int, parameters: int) -> dict[int, int]:
    """Number of the parameter by the row of its latest values."""
    past = bisect_left(history.parameters, end, key=attrgetter("position"))
    recent = history.parameters[max(0, past - STEPS_BACK * parameters) : past]
    return {s.value: s.owner for s in recent if s.value is not None}


def _followed(recording: Recording, at: int, latest: dict[int, int]) -> str:
    """The parameter from which a value comes through casts and multiplications by numbers; "" if it is none."""
    for _ in range(MOST_HOPS):
        if at in latest:
            return recording.parameter_names[latest[at]]
        if at < 0:
            source = recording.sources.get(at)
            return source.name if source is not None and source.kind == "parameter" else ""
        row, own = recording.op(at), _own(recording, at)
        if row is None or not own or row.name not in CARRIES:
            return ""
        at = own[0]
    return ""


def _is_update(recording: Recording, position: int) -> None:
    """Count a row among the updates, as that of an average inside of a module is."""
    chunk = recording.chunks[-1]
    if chunk.phase_of(position) in (FORWARD, OTHER):
        chunk.set_phase(position, OPTIMIZER)


def _named(recording: Recording, position: int, name: str) -> int:
    """The number of an average that is new."""
    row = recording.op(position)
    assert row is not None
    shape = "x".join(map(str, row.shape)) or "scalar"
    return recording.new_owner(f"the average of {name} ({shape})", "buffer")
