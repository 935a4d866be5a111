"""Counts, sums and averages in half precision, known by how the program updates them."""

from __future__ import annotations

from bisect import bisect_left
from operator import attrgetter

import numpy as np

from nanlab.analysis.training import CASTS
from nanlab.formats import HALF_PRECISION
from nanlab.operators import having, in_place, with_forms
from nanlab.trace.frames import StepRows
from nanlab.trace.history import History
from nanlab.trace.op import BACKWARD, FORWARD, OPTIMIZER, OTHER
from nanlab.trace.recording import Recording

# Counts, and sums in place: tensors that the program only adds to. Checked when a step ends.

COUNT_ADDS = frozenset(("add", "sub"))


def counts(rows: StepRows) -> list[tuple[int, int]]:
    """(number, row) of scalars that were added to in this step and in the last."""
    recording, columns, history = rows.recording, rows.columns, rows.history
    if HALF_PRECISION.isdisjoint(recording.dtypes.items):
        return []
    adds = columns.named(recording.ops, COUNT_ADDS) & ~columns.inplace
    single = np.array([s in ((), (1,)) for s in recording.shapes.items])[columns.shape]
    found = []
    for position in (np.flatnonzero(rows.half & adds & single) + rows.start).tolist():
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
    """Register a new count or sum, and return its number."""
    return recording.new_owner(f"the {what} at line {recording.at(position).line}", "buffer")


ADDS_IN_PLACE = in_place(having("adds", "accumulates"))
PASSES = having("same_elements", "parts", "picks") | {"copy_"}
WRITES_BACK = in_place(having("assigns"))
NEW = -1  # perhaps a sum: the step before did not add to it
UNNAMED_SUM = -2  # a sum without a number: the step before added to it first


def sums(rows: StepRows, written: dict[int, int]) -> dict[int, int]:
    """Number of the sum by row, for in-place additions to half-precision tensors or parts of them.

    A sum existed before the step, and only additions have changed it since the last step.
    written: number of the buffer or parameter by row; other sums get a number of their own.
    """
    recording, columns, history = rows.recording, rows.columns, rows.history
    before, history.sums = history.sums, {}
    if HALF_PRECISION.isdisjoint(recording.dtypes.items):
        return {}
    plain = rows.half & (columns.phase != BACKWARD) & (columns.node < 0)
    adds = rows.half & rows.by_hand & columns.named(recording.ops, ADDS_IN_PLACE) & columns.inplace
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
            at = UNNAMED_SUM if own[0] in before and at == NEW else at
        row = recording.at(position)
        if at is None or not row:
            continue
        if adds[position - rows.start]:
            if not _adds_something(recording, position, own):
                continue
            owner = written.get(position, at)
            if owner >= 0 and recording.parameter_kinds[owner] == "parameter":
                continue
            owner = _named_count(recording, position, "sum") if owner == UNNAMED_SUM else owner
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
    """Whether the added tensor or number is not zero."""
    if len(own) == 1:
        return any(recording.scalars.get(position, ()))
    added = recording.stats(own[-1])
    return added is not None and not added.all_zero


# Averages of parameters.

FOLLOWS = in_place(having("blends", lists=True))
AVERAGE_BLENDS = with_forms("add", "lerp", lists=True)
# operators applied to an average before the parameter is added
SCALES = in_place(with_forms("mul", lists=True))
DUPLICATES = having("copies") - having("casts")
CARRIES = having("copies", "reshapes") | CASTS | with_forms("mul", "sub", lists=True)
MOST_HOPS = 12
STEPS_BACK = 2  # training steps since the last update of an averaged parameter, at most
MOST_AVERAGES = 2000
UNNAMED = -1  # perhaps an average: a blend of something with a parameter


def averages(rows: StepRows, written: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """(number, row) of the updates of half-precision averages that are no buffers.

    An average existed before the step, and gets a parameter added: in place, or blended into a new
    tensor that is blended again. It gets a number, and a name like "the average of w".
    """
    recording, history, known = rows.recording, rows.history, {position for _, position in written}
    found: list[tuple[int, int]] = []
    latest: dict[int, int] | None = None
    for position in _candidates(rows):
        if position in known or len(history.averages) > MOST_AVERAGES:
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
        if owner is None or owner == UNNAMED:
            owner = _named_average(recording, position, name)
        history.averages[position] = owner
        _is_update(recording, position)
        found.append((owner, position))
    _follow_copies(rows)
    return found


def is_absorbed(recording: Recording, position: int) -> bool | None:
    """Whether a blend left the average as it was, though the parameter differs; None: unknown."""
    after = recording.stats(position)
    parts = recording.parents(position)[:2]
    whole = [recording.stats(unscaled(recording, part)) for part in parts]
    if after is None or len(whole) < 2 or any(of is None for of in whole) or whole[0] == whole[1]:
        return None
    return any(of == after for of in whole)


def _candidates(rows: StepRows) -> list[int]:
    """Half-precision rows by hand that add in place, or blend two values."""
    names, columns = rows.recording.ops, rows.columns
    if HALF_PRECISION.isdisjoint(rows.recording.dtypes.items):
        return []
    adds = columns.named(names, FOLLOWS) & columns.inplace
    blends = columns.named(names, AVERAGE_BLENDS) & ~columns.inplace
    chosen = rows.half & rows.by_hand & (adds | blends)
    return (np.flatnonzero(chosen) + rows.start).tolist()


def _parts(rows: StepRows, position: int, latest: dict[int, int]) -> tuple[int, str] | None:
    """(row of an average before, name of the parameter added to it); None: no average."""
    recording, own = rows.recording, rows.recording.parents(position)[:2]
    if len(own) < 2:
        return None
    if rows.columns.inplace[position - rows.start]:
        before, name = _before(rows, own[0]), _followed(recording, own[1], latest)
        return (before, name) if before is not None and name else None
    for one, other in (own, own[::-1]):
        before, name = unscaled(recording, one), _followed(recording, other, latest)
        if (
            before < rows.start
            and before not in latest
            and name
            and not _followed(recording, one, latest)
        ):
            return before, name
    return None


def _follow_copies(rows: StepRows) -> None:
    """Follow averages to the copies of them that are kept."""
    followed = rows.history.averages
    if not any(p >= rows.start for p in followed):
        return
    copies = rows.columns.named(rows.recording.ops, DUPLICATES)
    for position in (np.flatnonzero(copies) + rows.start).tolist():
        made = rows.recording.operands(position)
        if made and made[0][0] in followed and made[0][0] >= rows.start:
            followed[position] = followed.pop(made[0][0])


def unscaled(recording: Recording, at: int) -> int:
    """The row of a value before it was multiplied by a number, if it was."""
    scaled = recording.at(at).name in ("mul", "_foreach_mul")
    return next(iter(recording.parents(at)), at) if scaled else at


def _before(rows: StepRows, at: int) -> int | None:
    """The row of a tensor as the step found it; None if the step made it."""
    recording = rows.recording
    for _ in range(MOST_HOPS):
        if at < rows.start:
            return at
        own = recording.parents(at)
        if not own or recording.at(at).name not in SCALES:
            return None
        at = own[0]
    return None


def _latest(history: History, end: int, parameters: int) -> dict[int, int]:
    """Number of the parameter by the row of its latest value."""
    past = bisect_left(history.parameters, end, key=attrgetter("position"))
    recent = history.parameters[max(0, past - STEPS_BACK * parameters) : past]
    return {s.value: s.owner for s in recent if s.value is not None}


def _followed(recording: Recording, at: int, latest: dict[int, int]) -> str:
    """The parameter that a value comes from by casts and factors; "" if from none."""
    for _ in range(MOST_HOPS):
        if at in latest:
            return recording.parameter_names[latest[at]]
        if at < 0:
            source = recording.sources.get(at)
            return source.name if source is not None and source.kind == "parameter" else ""
        own = recording.parents(at)
        if not own or recording.at(at).name not in CARRIES:
            return ""
        at = own[0]
    return ""


def _is_update(recording: Recording, position: int) -> None:
    """Give a row the phase of an update, like that of an average inside a module."""
    chunk = recording.chunks[-1]
    if chunk.phase_of(position) in (FORWARD, OTHER):
        chunk.set_phase(position, OPTIMIZER)


def _named_average(recording: Recording, position: int, name: str) -> int:
    """Register a new average, and return its number."""
    shape = "x".join(map(str, recording.at(position).shape)) or "scalar"
    shown = name if name.endswith(")") else f"{name} ({shape})"
    return recording.new_owner(f"the average of {shown}", "buffer")
