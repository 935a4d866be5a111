"""Absorbed updates: too small for the dtype of what they are added to."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import replace
from operator import attrgetter

import numpy as np
import numpy.typing as npt
import torch
from torch.utils._pytree import tree_map_only

from nanlab.analysis.training import CASTS, where
from nanlab.findings.fault import listed
from nanlab.findings.rule import Finding, Fix, Severity, rule
from nanlab.formats import HALF_PRECISION, format_of
from nanlab.operators import having, in_place, with_forms
from nanlab.program.evidence import latest_absorbed_update
from nanlab.trace import Trace
from nanlab.trace.frames import StepRows, stat_columns
from nanlab.trace.history import AbsorbedUpdate, History, ParameterStep, place_at
from nanlab.trace.op import BACKWARD, FORWARD, OPTIMIZER, OTHER
from nanlab.trace.recording import Recording

# Updates are looked for when a step ends.

# Running sums: tensors that the program only adds to, step after step, and counts among them.

COUNT_ADDS = frozenset(("add", "sub"))


def counts(rows: StepRows, history: History) -> list[tuple[int, int]]:
    """(number, row) of single numbers that were added to in this step and in the last."""
    recording, columns = rows.recording, rows.columns
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
    """The number of a count or sum that is new."""
    return recording.new_owner(f"the {what} at line {recording.at(position).line}", "buffer")


ADDS_IN_PLACE = in_place(having("adds", "accumulates"))
PASSES = having("same_elements", "parts", "picks") | {"copy_"}
WRITES_BACK = in_place(having("assigns"))
NEW = -1  # it may be a sum: the step before did not add to it
UNNAMED_SUM = -2  # it is one: the step before did, for the first time


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
    """Whether a tensor or a number other than zero is added."""
    if len(own) == 1:
        return any(recording.scalars.get(position, ()))
    added = recording.stats(own[-1])
    return added is not None and not added.all_zero


# Averages, and what updates do.

FOLLOWS = in_place(having("blends", lists=True))
AVERAGE_BLENDS = with_forms("add", "lerp", lists=True)
# what may be done to an average before the parameter is added
SCALES = in_place(with_forms("mul", lists=True))
DUPLICATES = having("copies") - having("casts")
CARRIES = having("copies", "reshapes") | CASTS | with_forms("mul", "sub", lists=True)
MOST_HOPS = 12
STEPS_BACK = 2  # training steps in which a parameter that is averaged was updated last
MOST_AVERAGES = 2000  # averages
UNNAMED = -1  # it may be an average: a blend of something with a parameter


def averages(
    rows: StepRows, history: History, written: list[tuple[int, int]]
) -> list[tuple[int, int]]:
    """(number, row) of the updates of half-precision averages that are neither parameter nor
    buffer.

    An average was there before the step, and what is added to it comes from a parameter: in place,
    or blended into a new tensor that is blended again. It gets a number and a name of its own, as
    if it were a buffer: "the average of w".
    """
    recording, known = rows.recording, {position for _, position in written}
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
    _follow_copies(rows, history)
    return found


def is_absorbed(recording: Recording, position: int) -> bool | None:
    """Whether a blend is what the average was, though the parameter is not; None: unknown."""
    after = recording.stats(position)
    parts = recording.parents(position)[:2]
    whole = [recording.stats(_unscaled(recording, part)) for part in parts]
    if after is None or len(whole) < 2 or any(of is None for of in whole) or whole[0] == whole[1]:
        return None
    return any(of == after for of in whole)


def _candidates(rows: StepRows) -> list[int]:
    """Half-precision rows outside of graphs and optimizers that add in place, or add two values."""
    names, columns = rows.recording.ops, rows.columns
    if HALF_PRECISION.isdisjoint(rows.recording.dtypes.items):
        return []
    adds = columns.named(names, FOLLOWS) & columns.inplace
    blends = columns.named(names, AVERAGE_BLENDS) & ~columns.inplace
    chosen = rows.half & rows.by_hand & (adds | blends)
    return (np.flatnonzero(chosen) + rows.start).tolist()


def _parts(rows: StepRows, position: int, latest: dict[int, int]) -> tuple[int, str] | None:
    """(row or source of an average before, name of the parameter added to it); None: no sum."""
    recording, own = rows.recording, rows.recording.parents(position)[:2]
    if len(own) < 2:
        return None
    if rows.columns.inplace[position - rows.start]:
        before, name = _before(rows, own[0]), _followed(recording, own[1], latest)
        return (before, name) if before is not None and name else None
    for one, other in (own, own[::-1]):
        before, name = _unscaled(recording, one), _followed(recording, other, latest)
        if (
            before < rows.start
            and before not in latest
            and name
            and not _followed(recording, one, latest)
        ):
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
    scaled = recording.at(at).name in ("mul", "_foreach_mul")
    return next(iter(recording.parents(at)), at) if scaled else at


def _before(rows: StepRows, at: int) -> int | None:
    """The row or source of a tensor as the step found it; None where the step made it."""
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
    """Number of the parameter by the row of its latest values."""
    past = bisect_left(history.parameters, end, key=attrgetter("position"))
    recent = history.parameters[max(0, past - STEPS_BACK * parameters) : past]
    return {s.value: s.owner for s in recent if s.value is not None}


def _followed(recording: Recording, at: int, latest: dict[int, int]) -> str:
    """The parameter from which a value comes by casts and factors; "" if it is none."""
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
    """Count a row among the updates, as that of an average inside of a module is."""
    chunk = recording.chunks[-1]
    if chunk.phase_of(position) in (FORWARD, OTHER):
        chunk.set_phase(position, OPTIMIZER)


def _named_average(recording: Recording, position: int, name: str) -> int:
    """The number of an average that is new."""
    shape = "x".join(map(str, recording.at(position).shape)) or "scalar"
    return recording.new_owner(f"the average of {name} ({shape})", "buffer")


# Updates whose second operand is what is added; the number of operands that come before it, for
# each written tensor.
ADDS = in_place(having("updates", lists=True))
BLENDS = having("blends")
COUNTS = with_forms("add", "sub", in_place=True)
SUMS = having("updates")  # in place or not, of one tensor or of a list
# what may be done to a parameter besides
KEEPS = having("copies") - having("casts") | {"mul", "view"}
GROWS = 4.0  # times as much as was added in vain at first
ROUNDING = 2.0**-23  # a gradient this much smaller than the largest one is its rounding error


def note_absorbed_updates(
    rows: StepRows, history: History, steps: list[ParameterStep], written: list[tuple[int, int]]
) -> None:
    """Count the updates that changed a parameter, and those that were too small to."""
    recording = rows.recording
    stepped = [s for s in steps if s.used is not None]
    gradients = stat_columns(
        recording,
        np.array([recording.stat_of(s.used) for s in stepped], np.int64),  # type: ignore[arg-type]
    )
    updates = stat_columns(
        recording, np.array([-1 if s.update is None else s.update for s in stepped], np.int64)
    )
    finite = (gradients["nan"] == 0) & (gradients["posinf"] == 0) & (gradients["neginf"] == 0)
    noise = np.fmax(
        ROUNDING * np.fmax.reduce(gradients["rms"], initial=0.0),
        _noise(recording, stepped, gradients["rms"]),
    )
    telling = gradients["known"] & finite & (gradients["rms"] > noise) & updates["known"]
    still_now = updates["zero"] == updates["numel"]
    for i in np.flatnonzero(telling).tolist():
        step = stepped[i]
        if step.value is not None and step.lr and step.value >= rows.start:
            known = _known(rows, history, step.owner, step.value, by_hand=False)
            size = float(gradients["rms"][i])
            _count(rows, known, step.value, bool(still_now[i]), size, abs(step.lr))
    others = [*averages(rows, history, written), *counts(rows, history)]
    added = sums(rows, history, {at: owner for owner, at in written})
    kept = [(owner, at) for owner, at in written if at not in added]
    _note_by_hand(rows, history, _gradients(recording, steps), [*kept, *others])
    _note_sums(rows, history, added)
    _note_rounded(rows, history, stepped, written)
    history.factors = {at: factor for at, factor in history.factors.items() if at >= rows.end}


def _noise(
    recording: Recording, stepped: list[ParameterStep], sizes: npt.NDArray[np.float64]
) -> npt.NDArray[np.float64]:
    """The rounding error of each gradient that is held in half precision, told from the largest of
    its own module.

    The bias of the keys of an attention has no other gradient: a softmax does not change when all
    its arguments do.
    """
    modules = [recording.parameter_names[s.owner].rpartition(".")[0] for s in stepped]
    largest: dict[str, float] = {}
    for module, size in zip(modules, np.nan_to_num(sizes).tolist(), strict=True):
        largest[module] = max(largest.get(module, 0.0), size)
    dtypes = [recording.at(s.used).dtype for s in stepped]  # type: ignore[arg-type]
    ulps = [format_of(d).ulp if d in HALF_PRECISION else 0.0 for d in dtypes]
    return np.array(
        [ulp * largest[module] for ulp, module in zip(ulps, modules, strict=True)], np.float64
    )


def _note_rounded(
    rows: StepRows, history: History, stepped: list[ParameterStep], written: list[tuple[int, int]]
) -> None:
    """Count the updates that copying the parameter back by way of a narrower dtype undid."""
    recording = rows.recording
    updated = {
        s.owner: s.value for s in stepped if s.value is not None and s.value >= rows.start and s.lr
    }
    for owner, position in written:
        if owner not in updated or recording.at(position).name != "copy_":
            continue
        narrow = _rounded_from(recording, position, updated[owner])
        before = next(iter(recording.operands(updated[owner])), None)
        old = recording.stats(before[0]) if before is not None else None
        if narrow and old is not None and old.is_finite:
            known = _known(rows, history, owner, position, by_hand=True)
            _count(rows, known, position, bool(recording.stats(position) == old), 0.0, 0.0)
            known.at = replace(known.at, dtype=narrow)


def _rounded_from(recording: Recording, position: int, value: int) -> str:
    """The dtype narrower than float32 through which a copy of a row was made; "" if it was not."""
    at, narrow = recording.operands(position)[-1][0], ""
    for _ in range(MOST_HOPS):
        row = recording.at(at)
        if at == value or row.name.rstrip("_") not in KEEPS | CASTS | {"div"}:
            break
        dtype = row.dtype
        if dtype.is_floating_point and dtype.itemsize < 4:
            narrow = str(dtype).removeprefix("torch.")
        at = recording.operands(at)[0][0]
    return narrow if at == value else ""


def _gradients(recording: Recording, steps: list[ParameterStep]) -> dict[int, float]:
    """The rms of the gradient of each parameter that no optimizer has taken."""
    left = {
        s.owner: recording.stats(s.gradient)
        for s in steps
        if s.used is None and s.gradient is not None
    }
    return {
        owner: stats.rms or 0.0
        for owner, stats in left.items()
        if stats is not None and stats.is_finite
    }


def _note_by_hand(
    rows: StepRows, history: History, gradients: dict[int, float], written: list[tuple[int, int]]
) -> None:
    """The same for updates that the program made itself."""
    recording, noise = rows.recording, ROUNDING * max(gradients.values(), default=0.0)
    for owner, position in written:
        factor = abs(history.factors.get(position, 1.0))
        if position < rows.start or factor == 0.0 or gradients.get(owner, np.inf) <= noise:
            continue
        still, coefficient = _unchanged(recording, position, rows.start), ""
        if still is None and (coefficient := _vanished_factor(recording, position)):
            still = True
        if still is not None:
            added, given = _added_rms(recording, position), position in history.factors
            gradient = gradients.get(owner, added if given else 0.0)  # an average has none
            rate = factor if given else added / gradient if gradient else 0.0
            known = _known(rows, history, owner, position, by_hand=True, coefficient=coefficient)
            _count(rows, known, position, still, gradient, rate)


def _note_sums(rows: StepRows, history: History, added: dict[int, int]) -> None:
    """The same for what is only added to: sums and counts of several elements."""
    for position, owner in added.items():
        before, after = (
            rows.recording.stats(at) for at in (rows.recording.operands(position)[0][0], position)
        )
        if before is None or after is None or before.numel != after.numel or not before.is_finite:
            continue
        known = _known(rows, history, owner, position, by_hand=True)
        known.counter = True
        still = after == before
        if known.numel == 1 and not still and known.still and before.rms != known.value:
            known.moved += 1  # another element of the same sum
            continue
        change = _added(rows.recording, position)
        # what is compensated grows until it moves the sum
        if still and known.still and change > GROWS * known.update:
            still = False
        _count(rows, known, position, still, 0.0, 0.0)
        known.most = max(known.most, change) if still and known.still > 1 else change


def _unchanged(recording: Recording, position: int, start: int) -> bool | None:
    """Whether an addition in place changed nothing although what it added is not zero; None where
    that cannot be told.

    Two tensors count as the same if all their numbers agree to the bit, mean and mean square among
    them.
    """
    row = recording.at(position)
    if not row:
        return None
    if not row.inplace:  # a count or an average that is made anew
        if _is_counter(recording, position):
            before = recording.stats(recording.operands(position)[0][0])
            return bool(recording.stats(position) == before)
        return is_absorbed(recording, position)
    dtype, op = row.dtype, row.name
    if dtype == torch.float32 and _is_counter(recording, position):
        return _full_count(recording, position)
    if dtype not in HALF_PRECISION or op not in ADDS:
        found = _blended(recording, position) if op == "copy_" else None
        back = op == "copy_" and found is None and dtype in HALF_PRECISION
        return _written_back(recording, position, start) if back else found
    before = [recording.stats(s) for s in recording.parents(position)]
    after = recording.stats(position)
    if any(s is None for s in before) or not all(s.is_finite for s in before):
        return None
    if len(before) == 1 and _is_counter(recording, position):
        return bool(after == before[0])
    if len(before) < 2:
        return None
    if before[1] == before[0] or ("lerp" not in op and before[1].all_zero):
        return None  # it has arrived; nothing came
    return bool(after == before[0])


def _blended(recording: Recording, position: int) -> bool | None:
    """The same for a blend that is copied back: ``t.copy_(a * t + b * p)``."""
    after = recording.stats(position)
    made = recording.operands(position)[-1:]
    row = recording.at(made[0][0] if made else -1)
    if row.dtype not in HALF_PRECISION or after is None or row.name not in BLENDS:
        return None
    whole = [
        (recording.stats(_unscaled(recording, part)), recording.stats(part))
        for part, _ in recording.operands(made[0][0])
    ]
    if len(whole) != 2 or any(of is None or part is None or part.all_zero for of, part in whole):
        return None
    same = [of == after for of, _ in whole]
    return None if all(same) else any(same)


def _written_back(recording: Recording, position: int, start: int) -> bool | None:
    """The same for a narrow value that was read, added to in a wider dtype, and copied back:
    ``p.copy_(p.float() - lr * g)``.

    False where what is copied is a wide value that was there before the step: it keeps what the
    narrow one rounds away.
    """
    at, added, widened = recording.operands(position)[-1][0], False, False
    for _ in range(MOST_HOPS):
        row = recording.at(at)
        if not row or at < start or row.dtype in HALF_PRECISION:
            break
        op, own = row.base_name, recording.parents(at)
        widened = op in ("_to_copy", "copy")
        if op in SUMS and len(own) > 1:
            change = recording.stats(own[1])
            added = added or (change is not None and not change.all_zero)
        elif not own or not (widened or op in KEEPS):
            return None
        at = own[0]
    before, after = recording.stats(at), recording.stats(position)
    if not added or before is None or after is None or not before.is_finite:
        return None
    return after == before if widened else False


def _is_counter(recording: Recording, position: int) -> bool:
    """Whether a Python number was added to a single number."""
    if recording.at(position).name not in COUNTS or len(recording.operands(position)) != 1:
        return False
    stats = recording.stats(position)
    return stats is not None and bool(stats.numel == 1)


def _full_count(recording: Recording, position: int) -> bool | None:
    """Whether a float32 count, 2 apart from its neighbours, absorbs updates; None: not that far."""
    before, after = recording.stats(recording.operands(position)[0][0]), recording.stats(position)
    if before is None or after is None or (after.rms or 0.0) < 2 / format_of(torch.float32).ulp:
        return None
    return bool(after == before)


def _vanished_factor(recording: Recording, position: int) -> str:
    """The narrow dtype in which a difference such as 1 - decay is exactly zero; "" if none is."""
    operands = recording.operands(position)
    if recording.at(position).name not in ADDS or len(operands) < 2:
        return ""
    added, factors = recording.stats(operands[1][0]), operands[2:]  # of lerp_: the weight
    if added is not None and added.all_zero:
        factors = recording.operands(operands[1][0])
    for source, _ in factors:
        factor, made = recording.stats(source), recording.at(source)
        if made.name in CASTS:
            made = recording.at(next((s for s in made.inputs if s >= 0), -1))
        if factor is None or factor.numel != 1 or not factor.zero:
            continue
        if made.name in ("sub", "rsub") and made.dtype in HALF_PRECISION:
            return str(made.dtype).removeprefix("torch.")
    return ""


def _known(
    rows: StepRows,
    history: History,
    owner: int,
    position: int,
    by_hand: bool,
    coefficient: str = "",
) -> AbsorbedUpdate:
    """What is known of the updates of a parameter by one operation of one line."""
    recording, row = rows.recording, rows.recording.at(position)
    key = (owner, row.name, row.place)
    known = history.absorbed_updates.get(key)
    if known is None:
        place, value = place_at(recording, position), recording.stats(position)
        assert place is not None  # the step that has just ended is never folded
        counter = by_hand and _is_counter(recording, position)
        known = history.absorbed_updates[key] = AbsorbedUpdate(
            place, owner, value.numel, 0.0, 0.0, by_hand, coefficient=coefficient, counter=counter
        )
    return known


def _count(
    rows: StepRows, known: AbsorbedUpdate, position: int, still: bool, gradient: float, rate: float
) -> None:
    if still and not known.still:
        place, value = place_at(rows.recording, position), rows.recording.stats(position)
        assert place is not None
        known.at, known.value = place, value.rms or 0.0
        known.update = _added(rows.recording, position)
    known.count(position, still, gradient, rate)


def _added_rms(recording: Recording, position: int) -> float:
    """The rms of the second operand of an update; 0 where there is none."""
    own = recording.parents(position)
    stats = recording.stats(own[1]) if len(own) > 1 else None
    return (stats.rms or 0.0) if stats is not None and stats.is_finite else 0.0


def _added(recording: Recording, position: int) -> float:
    """Largest magnitude of what an update adds."""
    operands = recording.operands(position)
    stats = recording.stats(operands[-1][0]) if len(operands) > 1 else None
    return 0.0 if stats is None else stats.largest


# What a watch finds of it.

# Absorbed updates: how bad one is, and whether it moves its parameter in float32.

SHARE = 0.1  # of its optimizer's elements that a single stuck parameter must have to be an error
# the same in float32, where the gradient of a bias before a batch norm is rounding noise
MOST = 0.5
STOPPED = 3  # steps in which a counter must stand still
VARIES = 8  # the same of a sum of changing values
# Steps in which a small part that never moved must stand still to be an error: the first few may be
# those of a warm-up.
BEGUN = 8
ALONE = 16  # the same of a few numbers, a temperature say, that never move
# Steps in a row in which a parameter must stand still to be told though it moved before. One that
# moves every other step, as updates near half an ulp do, stands still four times in a row by chance
# once in 16; and the last three steps of a schedule that ends at zero are small in any dtype.
LASTS = 4
LONG = 10  # and to be told though that is a small part of its updates
# times as long as it ever stood still before it went on: compensated and stochastic updates come in
# jumps
LONGER = 3
# bits by which the rate must have fallen: at the same rate, what moved at first has mostly
# converged
DROPPED = 1.0
# log2 of the rms of gradients: in float32 what is below is rounding noise of numbers near 1, with 4
# bits to spare, as that of a bias before a batch norm; and what may be all that is left in a fit
# that has converged.
NOISE, SMALL = -20.0, -14.0
FEW = 8  # elements below which a single step proves nothing


def severity_from_start(
    recording: Recording, member: AbsorbedUpdate, count: int, share: float
) -> Severity | None:
    """How bad it is that a parameter never moved; None where it is no fault.

    count: of such parameters, share: of the elements on that line.
    """
    lasting = member.still >= (BEGUN if member.numel >= FEW else ALONE)
    if _wide(member):
        gradient = _gradient(member)
        if gradient < NOISE:
            return None
        if _rate_changed(member) > 0.0:
            return "note"
        # Adam divides by the gradient's size: the value itself is too large
        large = lasting and "addcdiv" in member.at.op
        return "error" if large or (share >= MOST and gradient >= SMALL) else "warning"
    if _rate_changed(member) > 0.0:
        return "warning"  # a warm-up, perhaps
    average = member.by_hand and recording.parameter_kinds[member.owner] != "parameter"
    return "error" if average or count > 1 or share >= SHARE or lasting else "warning"


def severity_afterwards(member: AbsorbedUpdate) -> Severity | None:
    """How bad it is that a parameter no longer moves; None where it is no fault."""
    still, updates = member.still, member.still + member.moved
    if (
        not member.standing.updates
        or still < LASTS
        or still < LONGER * member.paused
        or member.numel < FEW
    ):
        return None
    if _wide(member) and (member.fell("rate") < DROPPED or _gradient(member) < SMALL):
        return None
    # a rate that float32 absorbs is meant as the end of a schedule
    whole: Severity = "note" if _wide(member) else "error"
    if member.fell("rate") < DROPPED:  # at the rate at which it moved
        return "note" if still >= LONG else None
    if _rate_changed(member):  # the end of a cosine, say
        return whole if 2 * still >= updates else "note" if 4 * still >= updates else None
    return whole if still >= LONG or 4 * still >= updates else None


def _rate_changed(member: AbsorbedUpdate) -> float:
    """Bits by which the rate rose (fell: below 0) while the parameter stood; 0: under one."""
    change = member.standing.last - member.standing.first
    return change if abs(change) >= 1.0 else 0.0


def _gradient(member: AbsorbedUpdate) -> float:
    """log2 of the gradient's rms, averaged over updates without effect; inf: unknown."""
    return (
        member.standing.gradient / member.standing.updates if member.standing.updates else math.inf
    )


def stopped(member: AbsorbedUpdate) -> bool:
    """Whether a counter or a sum went on for a while, and then no more."""
    steps = STOPPED if member.most <= member.update else VARIES
    return member.counter and member.still >= steps


def _wide(member: AbsorbedUpdate) -> bool:
    """Whether it is of float32's precision or better."""
    return getattr(torch, member.at.dtype).itemsize >= 4  # type: ignore[no-any-return]


def moves_in_float32(recording: Recording, owner: int, op: str) -> tuple[int, int] | None:
    """(elements that move in float32, all of them), of an update by ``op`` that moves none in half
    precision.

    The operation is run again on the operands of one such update. None where no step at hand has
    one.
    """
    kept = latest_absorbed_update(recording, owner, op)
    if kept is None:
        return None
    args, kwargs = tree_map_only(
        torch.Tensor,
        lambda tensor: tensor.float() if tensor.is_floating_point() else tensor,
        (kept.args, kept.kwargs),
    )
    target = args[0][0] if isinstance(args[0], list | tuple) else args[0]
    before = target.clone()
    try:
        with torch.no_grad():
            kept.op(*args, **kwargs)
    except RuntimeError:
        return None
    return int((target != before).sum()), target.numel()


# Updates that change nothing: too small for the dtype of what they are added to.

TRIED = 4  # parameters of which a step is run again, to see whether one moves in float32


@rule(
    "error",
    family="training",
    events=("training.absorbed_updates",),
    example="""
        w = nn.Parameter(torch.ones(16, dtype=torch.bfloat16))
        opt = torch.optim.SGD([w], lr=1e-3)
        for i in range(3):
            opt.zero_grad()
            w.sum().backward()
            opt.step()  # here
    """,
    fix={"torch.ones(16, dtype=torch.bfloat16)": "torch.ones(16)"},
)
def absorbed_update(trace: Trace) -> Iterator[Finding]:
    """An update smaller than half an ulp of the value it is added to changes nothing."""
    groups: dict[tuple[str, int], list[AbsorbedUpdate]] = {}
    for still in trace.recording.training.absorbed_updates.values():
        groups.setdefault((still.at.op, still.at.line), []).append(still)
    for members in groups.values():
        yield from (_stopped_finding(trace, m) for m in members if stopped(m))
        numel = sum(m.numel for m in members)
        grades: dict[Severity, list[AbsorbedUpdate]] = {}
        stuck = [m for m in members if m.still and not m.moved and not stopped(m) and _proves(m)]
        for m in stuck:
            share = sum(s.numel for s in stuck) / numel
            if (severity := severity_from_start(trace.recording, m, len(stuck), share)) is not None:
                grades.setdefault(severity, []).append(m)
        for m in members:
            severity = severity_afterwards(m) if m.still and m.moved and not stopped(m) else None
            if severity is not None:
                grades.setdefault(severity, []).append(m)
        for severity, alike in grades.items():
            yield _absorbed_finding(
                trace, sorted(alike, key=lambda m: (-m.numel, m.first)), severity
            )


def _proves(member: AbsorbedUpdate) -> bool:
    """Whether the updates prove something; what is copied back may have a wide copy now."""
    return member.still > 1 or (member.numel >= FEW and member.at.op != "copy_")


def _stopped_finding(trace: Trace, member: AbsorbedUpdate) -> Finding:
    name, dtype = trace.recording.parameter_names[member.owner], member.at.dtype
    limits = format_of(dtype)
    size = f" (rms of {member.numel:,} elements)" if member.numel > 1 else ""
    counts = abs(member.value) >= 1 / limits.ulp  # neighbours are 1 or more apart
    text = (
        f"Counting by 1 in {dtype} stops at {2 / limits.ulp:.10g}, where neighbouring values are 2"
        " apart."
        if counts
        else (
            f"Neighbouring {dtype} values are"
            f" {limits.ulp * 2.0 ** math.frexp(member.value)[1] / 2:.3g} apart there."
        )
    )
    title = "count in an integer, which model.to(dtype) leaves alone"
    code = "torch.zeros((), dtype=torch.int64)"
    if not counts:
        title = "keep it in float32, or as a Python number, out of reach of model.to(dtype)"
        code = f"model.{name} = model.{name}.float()   # after model.to(dtype)"
    if moves_in_float32(trace.recording, member.owner, member.at.op) == (1, 1):
        fix = Fix(f"{title}; in float32 it goes on", code, verdict="verified")
    else:
        fix = Fix(title, code)
    return absorbed_update.finding(
        f"{name} stays at {member.value:.10g}{size}: {member.at.op} adds less than half an ulp"
        f" in {dtype}",
        f"{text} It has not changed in the last {member.still} steps.",
        step=trace.recording.step_of(member.first),
        symptom="silent-underflow",
        fixes=[fix],
        **where(trace.recording, member.at),
    )


def _absorbed_finding(trace: Trace, stuck: list[AbsorbedUpdate], severity: Severity) -> Finding:
    recording = trace.recording
    largest = stuck[0]
    limits = format_of(largest.at.dtype)
    names = [recording.parameter_names[m.owner] for m in stuck]
    shown = listed(names, 2)
    first = min(stuck, key=lambda m: m.first)
    if largest.coefficient:
        return _vanished_finding(trace, first, shown)
    return absorbed_update.finding(
        f"{largest.at.op} changes no element of {shown}: every update is below half an ulp in"
        f" {limits.name}",
        f"Neighbouring {limits.name} values differ by one part in"
        f" {round(1 / limits.ulp)}; an update below half of that is rounded away, here in each of"
        f" {largest.still} steps.{_history(largest)}",
        severity=severity,
        step=recording.step_of(first.first),
        symptom="silent-underflow",
        fixes=[_in_float32(trace, stuck), _larger(trace, largest, round(4 / limits.ulp))],
        **where(recording, first.at),
    )


def _history(member: AbsorbedUpdate) -> str:
    """What became smaller when a parameter ceased to move."""
    if not member.moved:
        return ""
    gradient, rate = member.fell("gradient"), member.fell("rate")
    told = [
        f"the {name} {2**bits:.2g} times smaller"
        for name, bits in (("learning rate", rate), ("gradient", gradient))
        if bits >= DROPPED
    ]
    since = f", with {' and '.join(told)} than before" if told else ""
    return f" It changed in {member.moved} steps, and no longer since{since}."


def _larger(trace: Trace, member: AbsorbedUpdate, part: int) -> Fix:
    """Larger updates; ``part``: of a value that an update must exceed."""
    if member.by_hand and not _trained(trace, member):
        return Fix(
            "take fewer, larger steps",
            f"decay = decay**k  # every k steps, so that updates exceed value / {part:,}",
        )
    return Fix(
        "use stochastic rounding, or a larger step",
        f"lr=...  # so that updates exceed value / {part:,}",
    )


def _trained(trace: Trace, member: AbsorbedUpdate) -> bool:
    """Whether it is a parameter that had gradients, rather than an average or a statistic."""
    return any(
        s.owner == member.owner and s.gradient is not None
        for s in trace.recording.training.parameters
    )


def _wider(trace: Trace, member: AbsorbedUpdate) -> str:
    """What to write to hold something in float32."""
    recording = trace.recording
    name = recording.parameter_names[member.owner].rpartition(".")[2]
    if not member.by_hand:
        return "model.float()  # and torch.autocast for the forward pass"
    if _trained(trace, member):
        return (
            "master = [p.detach().float() for p in model.parameters()]  # update these, then"
            " p.copy_(m)"
        )
    if (
        recording.parameter_kinds[member.owner] == "buffer"
        and name.isidentifier()
        and member.at.module
    ):
        return f"self.{name} = self.{name}.float()"  # written by the module itself
    return "ema = {k: v.detach().float().clone() for k, v in model.state_dict().items()}"


def _in_float32(trace: Trace, stuck: list[AbsorbedUpdate]) -> Fix:
    """Wider values, tried on an update that a replay makes again."""
    if _wide(stuck[0]):
        return Fix(
            "learn the offset from a reference value, which small steps can change",
            "value = reference + self.offset",
        )
    title, code = "keep these values in float32", _wider(trace, stuck[0])
    tried = (moves_in_float32(trace.recording, m.owner, m.at.op) for m in stuck[:TRIED])
    moved, numel = next((t for t in tried if t is not None), (0, 0))
    if not moved:
        return Fix(title, code)
    return Fix(
        f"{title}: {moved:,} of {numel:,} elements then change, instead of none",
        code,
        verdict="verified",
    )


def _vanished_finding(trace: Trace, first: AbsorbedUpdate, shown: str) -> Finding:
    return absorbed_update.finding(
        f"{first.at.op} changes no element of {shown}: its factor is exactly 0 in"
        f" {first.coefficient}",
        f"A coefficient near 1 was rounded to 1 in {first.coefficient}, so 1 minus it is 0, in each"
        f" of {first.still} steps.",
        step=trace.recording.step_of(first.first),
        symptom="silent-underflow",
        fixes=[Fix("keep the coefficient in float32, or as a Python number", "decay = 0.9999")],
        **where(trace.recording, first.at),
    )
