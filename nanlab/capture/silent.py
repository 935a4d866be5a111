"""Losses that leave no NaN behind: values flushed to zero, and updates that change nothing. Looked for when a step ends."""

from __future__ import annotations

import numpy as np
import torch

from nanlab.capture.following import StepRows, place_of
from nanlab.formats import format_of
from nanlab.history import Flush, History, ParameterStep, Standstill
from nanlab.trace.columns import stat_columns
from nanlab.trace.recording import BORN, CALL, DTYPE, FACTOR, FLAGS, INPLACE, LINE, OP, OUTPUT, Recording

CASTS = frozenset(("_to_copy", "copy_", "to"))
PRODUCTS = frozenset(
    "mul mul_ div div_ mm bmm addmm baddbmm convolution convolution_backward _foreach_mul_ _foreach_div_".split()
)
# Updates whose second operand is what is added; the number of operands that come before it, for each written tensor.
ADDS = frozenset(
    "add_ sub_ addcdiv_ addcmul_ lerp_ _foreach_add_ _foreach_sub_ _foreach_addcdiv_ _foreach_addcmul_ _foreach_lerp_".split()
)
QUOTIENTS = frozenset(("div", "div_", "_foreach_div_"))
SQUARES = frozenset(("addcmul_", "_foreach_addcmul_"))  # of optimizers: the second moment
MOST_CANDIDATES = 64  # flushes that are looked into in one step
NOISE = 2.0**-23  # a gradient this much smaller than the largest one is its rounding error
MOST_VISITS = 4000  # rows that are walked over for one victim


def lost_values(rows: StepRows) -> list[int]:
    """Rows that are zero throughout though none of their operands is, because the dtype cannot hold the results."""
    recording = rows.recording
    names = recording.ops.items
    interesting = np.array([n in CASTS or n in PRODUCTS or n in SQUARES for n in names])
    found = []
    for i in np.flatnonzero(rows.all_zero() & interesting[rows.meta[:, OP]])[:MOST_CANDIDATES].tolist():
        position = rows.start + i
        if _flushed(recording, position, names[rows.meta[i, OP]], recording.dtypes.items[rows.meta[i, DTYPE]]):
            found.append(position)
    return found


def _square_lost(recording: Recording, position: int, dtype: torch.dtype) -> bool:
    """Whether a sum of squares in a narrow dtype is zero throughout though what was squared is not."""
    row = recording.row(position)
    if row is None or dtype not in (torch.float16, torch.bfloat16):
        return False
    targets = _outputs(recording, row[CALL])
    own = [recording.stats(source) for source, slot in recording.operands(position) if slot % targets == row[OUTPUT]]
    return len(own) > 1 and all(s is not None and s.is_finite and s.zero < s.numel for s in own[1:])


def _flushed(recording: Recording, position: int, op: str, dtype: torch.dtype) -> bool:
    if op in SQUARES:
        return _square_lost(recording, position, dtype)
    if op in QUOTIENTS and overflow_below(recording, position) >= 0:
        return True
    operands = [
        s for source, _ in recording.operands(position) if (s := recording.stats(source)) is not None and s.numel
    ]
    if op == "copy_":
        operands = operands[-1:]
    if not operands or any(s.zero == s.numel or not s.is_finite or s.absmin is None for s in operands):
        return False
    if op in CASTS:
        return True
    if len(operands) < 2:
        row = recording.row(position)
        return row is not None and bool(row[FLAGS] & FACTOR)
    limit = format_of(dtype).rounds_to_zero
    sizes = [max(abs(s.min), abs(s.max)) for s in operands]
    if op in QUOTIENTS:
        return bool(operands[1].zero == 0 and sizes[0] / operands[1].absmin <= limit)
    terms = max(1.0, (operands[-1].numel * operands[-2].numel / max(1, recording.stats(position).numel)) ** 0.5)
    return bool(sizes[-1] * sizes[-2] * terms <= limit)


def overflow_below(recording: Recording, position: int) -> int:
    """The row whose overflow in half precision made every divisor of a quotient infinite; -1 where that is not so."""
    read = [(source, recording.stats(source)) for source, _ in recording.operands(position)]
    if len(read) != 2 or read[0][1] is None or read[1][1] is None:
        return -1
    above, below = read[0][1], read[1][1]
    if not above.is_finite or above.zero == above.numel or not 0 < below.numel == below.posinf + below.neginf:
        return -1
    at = read[1][0]
    for _ in range(MOST_VISITS):
        row = recording.row(at) if at >= 0 else None
        if row is None or recording.status.get(at) == BORN:
            low = row is not None and recording.dtypes.items[row[DTYPE]] in (torch.float16, torch.bfloat16)
            return at if low else -1
        at = next((p for p in recording.parents(at) if p in recording.bad), -1)
    return -1


def _reaches(recording: Recording, start: int, lost: set[int], zero: set[int]) -> int | None:
    """The lost row from which an all-zero result comes, through results that are zero throughout."""
    seen, waiting = {start}, [start]
    for position in waiting:
        if position in lost:
            return position
        if len(seen) > MOST_VISITS:
            return None
        for parent, _ in recording.operands(position):
            if parent in zero and parent not in seen:
                seen.add(parent)
                waiting.append(parent)
    return None


def note_flushes(rows: StepRows, history: History, gradients: dict[int, int], written: list[tuple[int, int]]) -> None:
    """Add what the step lost to ``history.flushes``.

    gradients: row of the gradient by number of the parameter. written: (parameter, row) of updates made by hand.
    """
    lost = set(lost_values(rows))
    if not lost:
        return
    recording = rows.recording
    zero = set((np.flatnonzero(rows.all_zero()) + rows.start).tolist())
    blamed: set[int] = set()
    for owner, source in gradients.items():
        if source in zero and (culprit := _reaches(recording, source, lost, zero)) is not None:
            blamed.add(culprit)
            _note(rows, history, culprit, "gradient", recording.parameter_names[owner])
    for owner, position in written:
        for operand, slot in recording.operands(position):
            if slot and operand in zero and (culprit := _reaches(recording, operand, lost, zero)) is not None:
                blamed.add(culprit)
                _note(rows, history, culprit, "update", recording.parameter_names[owner])
    for position in lost - blamed:
        _note(rows, history, position, "tensor", "")


def _note(rows: StepRows, history: History, position: int, cost: str, name: str) -> None:
    recording, end = rows.recording, rows.start + len(rows)
    row = recording.row(position)
    quotient = row is not None and recording.ops.items[row[OP]] in QUOTIENTS
    origin = overflow_below(recording, position) if quotient else -1
    place = place_of(recording, position if origin < 0 else origin)
    assert place is not None
    key = (place.op, place.line, place.module, cost, name)
    known = history.flushes.get(key)
    if known is not None:
        known.count += known.last != end
        known.last = end
        return
    stats = [recording.stats(s) for s, _ in recording.operands(position)]
    sizes = [max(abs(s.min), abs(s.max)) for s in stats if s is not None and s.min is not None]
    numel = recording.stats(position).numel
    flush = Flush(place, cost, name, numel, max(sizes, default=0.0), position, end, overflow=origin >= 0)  # type: ignore[arg-type]
    history.flushes[key] = flush


# -- updates that change nothing ------------------------------------------------------------------------------------


def note_standstills(
    rows: StepRows, history: History, steps: list[ParameterStep], written: list[tuple[int, int]]
) -> None:
    """Count the updates that changed a parameter, and those that were too small to."""
    recording = rows.recording
    stepped = [s for s in steps if s.used is not None]
    gradients = stat_columns(recording, np.array([recording.stat_of(s.used) for s in stepped], np.int64))  # type: ignore[arg-type]
    updates = stat_columns(recording, np.array([-1 if s.update is None else s.update for s in stepped], np.int64))
    finite = (gradients["nan"] == 0) & (gradients["posinf"] == 0) & (gradients["neginf"] == 0)
    noise = NOISE * np.fmax.reduce(gradients["rms"], initial=0.0)
    telling = gradients["known"] & finite & (gradients["rms"] > noise) & updates["known"]
    still_now = updates["zero"] == updates["numel"]
    for i in np.flatnonzero(telling).tolist():
        step = stepped[i]
        if step.value is not None and step.lr and step.value >= rows.start:
            _count(rows, history, step.owner, step.value, bool(still_now[i]), by_hand=False)
    for owner, position in written:
        still, coefficient = _unchanged(recording, position), ""
        if still is None and (coefficient := _vanished_factor(recording, position)):
            still = True
        if still is not None:
            _count(rows, history, owner, position, still, by_hand=True, coefficient=coefficient)


def _unchanged(recording: Recording, position: int) -> bool | None:
    """Whether an addition in place changed nothing although what it added is not zero; None where that cannot be told.

    Two tensors count as the same if all their numbers agree to the bit, mean and mean square among them.
    """
    row = recording.row(position)
    if row is None or not row[FLAGS] & INPLACE or recording.ops.items[row[OP]] not in ADDS:
        return None
    dtype = recording.dtypes.items[row[DTYPE]]
    if dtype not in (torch.float16, torch.bfloat16):
        return None
    operands, targets = recording.operands(position), _outputs(recording, row[CALL])
    before = [recording.stats(s) for s, slot in operands if slot % targets == row[OUTPUT]]
    after = recording.stats(position)
    if any(s is None for s in before) or not all(s.is_finite for s in before):
        return None
    if len(before) == 1 and _is_counter(recording, position):
        return bool(after == before[0])
    if len(before) < 2:
        return None
    if "lerp" in recording.ops.items[row[OP]]:
        return None if before[1] == before[0] else after == before[0]
    return None if before[1].zero == before[1].numel else after == before[0]


def _is_counter(recording: Recording, position: int) -> bool:
    """Whether a Python number was added to a single number in place."""
    row, stats = recording.row(position), recording.stats(position)
    adds = row is not None and recording.ops.items[row[OP]] in ("add_", "sub_")
    return adds and stats is not None and stats.numel == 1 and len(recording.operands(position)) == 1


def _vanished_factor(recording: Recording, position: int) -> str:
    """The narrow dtype in which a difference such as 1 - decay is exactly zero, and with it all that an update adds; "" if none is."""
    row = recording.row(position)
    if row is None or recording.ops.items[row[OP]] not in ADDS or len(operands := recording.operands(position)) < 2:
        return ""
    added, factors = recording.stats(operands[1][0]), operands[2:]  # of lerp_: the weight
    if added is not None and added.zero == added.numel:
        factors = recording.operands(operands[1][0])
    for source, _ in factors:
        factor, made = recording.stats(source), recording.row(source) if source >= 0 else None
        if made is not None and recording.ops.items[made[OP]] in CASTS:
            made = next((recording.row(s) for s, _ in recording.operands(source) if s >= 0), None)
        if made is None or factor is None or factor.numel != 1 or not factor.zero:
            continue
        dtype = recording.dtypes.items[made[DTYPE]]
        if recording.ops.items[made[OP]] in ("sub", "rsub") and dtype in (torch.float16, torch.bfloat16):
            return str(dtype).removeprefix("torch.")
    return ""


def _outputs(recording: Recording, call: int) -> int:
    """How many tensors a call wrote."""
    count = 1
    while (row := recording.row(call + count)) is not None and row[CALL] == call:
        count += 1
    return count


def _count(
    rows: StepRows, history: History, owner: int, position: int, still: bool, by_hand: bool, coefficient: str = ""
) -> None:
    if position < rows.start:
        return
    recording, row = rows.recording, rows.meta[position - rows.start]
    key = (owner, recording.ops.items[row[OP]], int(row[LINE]))
    known = history.standstills.get(key)
    place = place_of(recording, position) if known is None or (still and known.first < 0) else None
    if known is None:
        assert place is not None  # the step that has just ended is never folded
        value = recording.stats(position)
        known = history.standstills[key] = Standstill(
            place,
            owner,
            value.numel,
            _added(recording, position),
            value.rms or 0.0,
            by_hand,
            coefficient=coefficient,
            counter=by_hand and _is_counter(recording, position),
        )
    if still:
        if known.first < 0:
            assert place is not None
            known.first, known.at = position, place
            known.update, known.value = _added(recording, position), recording.stats(position).rms or 0.0
        known.still += 1
    elif known.first < 0:
        known.moved_before += 1
    else:
        known.moved_after += 1


def _added(recording: Recording, position: int) -> float:
    """Largest magnitude among the second operands of an update."""
    operands = recording.operands(position)
    stats = recording.stats(operands[1][0]) if len(operands) == 2 else None
    return max(abs(stats.min), abs(stats.max)) if stats is not None and stats.min is not None else 0.0


__all__ = ["lost_values", "note_flushes", "note_standstills"]
