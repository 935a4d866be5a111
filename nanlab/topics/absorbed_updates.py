"""Absorbed updates: too small for the dtype of what they are added to."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace

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
from nanlab.program.rerun import operate
from nanlab.topics.accumulators import MOST_HOPS, averages, counts, is_absorbed, sums, unscaled
from nanlab.topics.idle_updates import is_idle, own_zero_factor
from nanlab.trace import Trace
from nanlab.trace.frames import StepRows, stat_columns
from nanlab.trace.history import AbsorbedUpdate, ParameterStep, place_at
from nanlab.trace.recording import Recording

# Updates whose second operand is added to the first.
ADDS = in_place(having("updates", lists=True))
BLENDS = having("blends")
COUNTS = with_forms("add", "sub", in_place=True)
SUMS = having("updates")  # in place or not, of one tensor or of a list
# operators that keep a parameter what it is
KEEPS = having("copies") - having("casts") | {"mul", "view"}
GROWS = 4.0  # growth of an absorbed term from which on it is compensated, and will get through
ROUNDING = 2.0**-23  # a gradient this much smaller than the largest one is its rounding error


def note_absorbed_updates(rows: StepRows, written: list[tuple[int, int]]) -> None:
    """Count the updates that changed a parameter, and the absorbed ones."""
    recording, history = rows.recording, rows.history
    stepped = [s for s in rows.parameter_steps if s.used is not None]
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
            still, factor = bool(still_now[i]), None
            if still and is_idle(recording, step.value):
                factor = own_zero_factor(recording, step.value, rows.start)
                if factor is None and recording.at(step.value).dtype not in HALF_PRECISION:
                    continue  # nothing was rounded away
            known = _known(rows, step.owner, step.value, by_hand=False, factor=factor)
            size = float(gradients["rms"][i])
            _count(rows, known, step.value, still, size, abs(step.lr))
            without = int(gradients["zero"][i])
            known.lost += max(0, int(updates["zero"][i]) - without)
            known.added += int(gradients["numel"][i]) - without
    others = [*averages(rows, written), *counts(rows)]
    added = sums(rows, {at: owner for owner, at in written})
    kept = [(owner, at) for owner, at in written if at not in added]
    _note_by_hand(rows, [*kept, *others])
    _note_sums(rows, added)
    _note_rounded(rows, stepped, written)
    history.factors = {at: factor for at, factor in history.factors.items() if at >= rows.end}


def _noise(
    recording: Recording, stepped: list[ParameterStep], sizes: npt.NDArray[np.float64]
) -> npt.NDArray[np.float64]:
    """The rounding error of each half-precision gradient, from the largest of its module.

    The gradient of an attention's key bias is nothing else: a softmax ignores a common shift.
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
    rows: StepRows, stepped: list[ParameterStep], written: list[tuple[int, int]]
) -> None:
    """Count the updates undone by copying the parameter back through a narrower dtype."""
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
            known = _known(rows, owner, position, by_hand=True)
            _count(rows, known, position, bool(recording.stats(position) == old), 0.0, 0.0)
            known.at = replace(known.at, dtype=narrow)


def _rounded_from(recording: Recording, position: int, value: int) -> str:
    """The dtype narrower than float32 that a copy of a row went through; "" if none."""
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


def _gradients(rows: StepRows) -> dict[int, float]:
    """The gradient rms of each parameter that no optimizer updated."""
    by_hand = {s.owner: s.gradient for s in rows.parameter_steps if s.used is None}
    left = {o: rows.recording.stats(at) for o, at in by_hand.items() if at is not None}
    return {owner: s.rms or 0.0 for owner, s in left.items() if s is not None and s.is_finite}


def _note_by_hand(rows: StepRows, written: list[tuple[int, int]]) -> None:
    """Count the updates that the program made itself, and the absorbed ones."""
    recording, factors, gradients = rows.recording, rows.history.factors, _gradients(rows)
    noise = ROUNDING * max(gradients.values(), default=0.0)
    for owner, position in written:
        factor = abs(factors.get(position, 1.0))
        if position < rows.start or factor == 0.0 or gradients.get(owner, np.inf) <= noise:
            continue
        learns, zero = owner in gradients, None
        still, coefficient = _unchanged(recording, position, rows.start, learns), ""
        if learns and not still and is_idle(recording, position):
            zero = own_zero_factor(recording, position, rows.start)
            still = True if zero is not None else None
        if still is None and (coefficient := _vanished_factor(recording, position)):
            still = True
        if still is not None:
            added, given = _added_rms(recording, position), position in factors
            gradient = gradients.get(owner, added if given else 0.0)  # an average has none
            rate = factor if given else added / gradient if gradient else 0.0
            known = _known(rows, owner, position, True, coefficient, zero)
            _count(rows, known, position, still, gradient, rate)


def _note_sums(rows: StepRows, added: dict[int, int]) -> None:
    """Count the additions to sums and counts, and the absorbed ones."""
    for position, owner in added.items():
        before, after = map(
            rows.recording.stats, (rows.recording.operands(position)[0][0], position)
        )
        if before is None or after is None or before.numel != after.numel or not before.is_finite:
            continue
        known = _known(rows, owner, position, by_hand=True)
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


def _unchanged(recording: Recording, position: int, start: int, learns: bool) -> bool | None:
    """Whether an addition of something non-zero changed nothing; None if unknown.

    Tensors count as the same if all their statistics agree to the bit. learns: whether the tensor
    has a gradient, so that wide formats count too.
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
    if op not in ADDS or not (dtype in HALF_PRECISION or learns):
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
    """``_unchanged`` for a blend that is copied back: ``t.copy_(a * t + b * p)``."""
    after = recording.stats(position)
    made = recording.operands(position)[-1:]
    row = recording.at(made[0][0] if made else -1)
    if row.dtype not in HALF_PRECISION or after is None or row.name not in BLENDS:
        return None
    whole = [
        (recording.stats(unscaled(recording, part)), recording.stats(part))
        for part, _ in recording.operands(made[0][0])
    ]
    if len(whole) != 2 or any(of is None or part is None or part.all_zero for of, part in whole):
        return None
    same = [of == after for of, _ in whole]
    return None if all(same) else any(same)


def _written_back(recording: Recording, position: int, start: int) -> bool | None:
    """``_unchanged`` for a value updated in a wider dtype: ``p.copy_(p.float() - lr * g)``.

    False if the source is a wide tensor from before the step, which keeps the rest.
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
    """Whether a float32 count absorbs updates; None while its neighbours are 1 apart."""
    before, after = recording.stats(recording.operands(position)[0][0]), recording.stats(position)
    if before is None or after is None or (after.rms or 0.0) < 2 / format_of(torch.float32).ulp:
        return None
    return bool(after == before)


def _vanished_factor(recording: Recording, position: int) -> str:
    """The narrow dtype in which a factor such as 1 - decay became zero; "" if none did."""
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
    owner: int,
    position: int,
    by_hand: bool,
    coefficient: str = "",
    factor: int | None = None,
) -> AbsorbedUpdate:
    """The record of a parameter's updates by one operation of one line.

    factor: row of what makes the update exactly zero, if it is.
    """
    recording, row = rows.recording, rows.recording.at(position)
    key = (owner, row.name, row.place)
    followed = rows.history.absorbed_updates
    known = followed.get(key)
    if known is None:
        place, value = place_at(recording, position), recording.stats(position)
        assert place is not None  # the step that has just ended is never folded
        counter = by_hand and _is_counter(recording, position)
        known = followed[key] = AbsorbedUpdate(
            place, owner, value.numel, 0.0, 0.0, by_hand, coefficient=coefficient, counter=counter
        )
    known.factor = None if factor is None else place_at(recording, factor)
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
    """The rms of the second operand of an update; 0 without one."""
    own = recording.parents(position)
    stats = recording.stats(own[1]) if len(own) > 1 else None
    return (stats.rms or 0.0) if stats is not None and stats.is_finite else 0.0


def _added(recording: Recording, position: int) -> float:
    """Largest magnitude of the term that an update adds."""
    operands = recording.operands(position)
    stats = recording.stats(operands[-1][0]) if len(operands) > 1 else None
    return 0.0 if stats is None else stats.largest


# Grades: how bad an absorbed update is, and whether it has an effect in float32.

# share of its optimizer's elements from which on a single stuck parameter is an error
SHARE = 0.1
MOST = 0.5  # the same in float32, where the gradient of a bias before a batch norm is noise
STOPPED = 3  # absorbed updates from which on a counter has stopped
VARIES = 8  # the same for a sum of changing values
# Absorbed updates from which on a small part that never moved is an error; fewer may be a warm-up.
BEGUN = 8
ALONE = 16  # the same for a few numbers, such as a temperature
# Absorbed updates in a row from which on a parameter that moved before is reported. One that moves
# every other step, near half an ulp, has four in a row by chance once in 16; and the last three
# steps of a schedule that ends at zero are small in any dtype.
LASTS = 4
LONG = 10  # the same where they are a small part of all updates
LONGER = 3  # times the longest earlier pause: compensated and stochastic updates come in jumps
DROPPED = 1.0  # bits the rate must have fallen by: at the same rate, a fit has converged
# log2 of the rms of gradients: below NOISE, in float32, a gradient is rounding noise of numbers
# near 1, with 4 bits to spare; below SMALL it may be the rest of a converged fit.
NOISE, SMALL = -20.0, -14.0
NEARLY_ALL = 0.9  # share of the elements' updates from which on their loss is told
FEW = 8  # elements below which a single step proves nothing


def severity_from_start(
    recording: Recording, member: AbsorbedUpdate, count: int, share: float
) -> Severity | None:
    """Grade of a parameter that never moved; None if that is no fault.

    count: of such parameters on the line, share: of its elements.
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
    """Grade of a parameter that no longer moves; None if that is no fault."""
    still, updates = member.still, member.still + member.moved
    enough = still >= max(LASTS, LONGER * member.paused) and member.numel >= FEW
    if not member.standing.updates or not enough:
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
    """Bits by which the rate rose (or fell) over absorbed updates; 0 if less than one."""
    change = member.standing.last - member.standing.first
    return change if abs(change) >= 1.0 else 0.0


def _gradient(member: AbsorbedUpdate) -> float:
    """Mean log2 of the gradient's rms over absorbed updates; inf if unknown."""
    return (
        member.standing.gradient / member.standing.updates if member.standing.updates else math.inf
    )


def stopped(member: AbsorbedUpdate) -> bool:
    """Whether a counter or sum has stopped."""
    steps = STOPPED if member.most <= member.update else VARIES
    return member.counter and member.still >= steps


def _wide(member: AbsorbedUpdate) -> bool:
    """Whether its dtype is as precise as float32."""
    return getattr(torch, member.at.dtype).itemsize >= 4  # type: ignore[no-any-return]


def moves_in_float32(recording: Recording, owner: int, op: str) -> tuple[int, int] | None:
    """(elements that change in float32, all elements) of an update absorbed in half precision.

    The operation runs again on the operands of one such update; None if none is kept.
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
            operate(kept.op, args, kwargs)
    except RuntimeError:
        return None
    return int((target != before).sum()), target.numel()


TRIED = 4  # parameters whose update is tried in float32


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
        if still.factor is None:  # else nothing was rounded away
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
        narrow = [m for m in members if not _wide(m) and m.still + m.moved >= LASTS]
        lost, added = sum(m.lost for m in narrow), sum(m.added for m in narrow)
        if not grades and added and lost >= NEARLY_ALL * added:
            yield _partly_finding(trace, narrow, lost / added)


def _proves(member: AbsorbedUpdate) -> bool:
    """Whether the updates prove a fault; a copy back may come from a wide copy now."""
    return member.still > 1 or (member.numel >= FEW and member.at.op != "copy_")


def _stopped_finding(trace: Trace, member: AbsorbedUpdate) -> Finding:
    name, dtype = trace.recording.parameter_names[member.owner], member.at.dtype
    limits = format_of(dtype)
    size = f" (rms of {member.numel:,} elements)" if member.numel > 1 else ""
    counts = abs(member.value) >= 1 / limits.ulp  # neighbours are 1 or more apart
    if counts:
        text = (
            f"Counting by 1 in {dtype} stops at {2 / limits.ulp:.10g}, where neighbouring values"
            " are 2 apart."
        )
        title = "count in an integer, which model.to(dtype) leaves alone"
        fix = Fix(title, "torch.zeros((), dtype=torch.int64)")
    else:
        apart = limits.ulp * 2.0 ** math.frexp(member.value)[1] / 2
        text = f"Neighbouring {dtype} values are {apart:.3g} apart there."
        title = "keep it in float32, or as a Python number, out of reach of model.to(dtype)"
        fix = Fix(title, f"model.{name} = model.{name}.float()   # after model.to(dtype)")
    if moves_in_float32(trace.recording, member.owner, member.at.op) == (1, 1):
        fix = replace(fix, title=f"{title}; in float32 it goes on")
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


def _partly_finding(trace: Trace, members: list[AbsorbedUpdate], share: float) -> Finding:
    """Parameters that move, but of whose elements next to none does."""
    largest = max(members, key=lambda m: m.lost)
    limits, steps = format_of(largest.at.dtype), largest.still + largest.moved
    names = listed([trace.recording.parameter_names[m.owner] for m in members], 2)
    return absorbed_update.finding(
        f"{100 * share:.3g} % of what {largest.at.op} adds to {names} is rounded away in"
        f" {limits.name}",
        f"Neighbouring {limits.name} values differ by one part in {round(1 / limits.ulp)}. This"
        f" share of the elements that had a gradient kept their value, counted over {steps} steps.",
        severity="warning",
        step=trace.recording.step_of(largest.at.position),
        symptom="silent-underflow",
        fixes=[
            Fix("keep these values in float32", _wider(trace, largest)),
            _larger(trace, largest, round(4 / limits.ulp)),
        ],
        **where(trace.recording, largest.at),
    )


def _history(member: AbsorbedUpdate) -> str:
    """A sentence on what became smaller when a parameter stopped moving; "" if it never moved."""
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
    exceed = f"so that updates exceed value / {part:,}"
    if member.by_hand and not _trained(trace, member):
        return Fix("take fewer, larger steps", f"decay = decay**k  # every k steps, {exceed}")
    return Fix("use stochastic rounding, or a larger step", f"lr=...  # {exceed}")


def _trained(trace: Trace, member: AbsorbedUpdate) -> bool:
    """Whether it had gradients: a parameter, rather than an average or a statistic."""
    return any(
        s.owner == member.owner and s.gradient is not None
        for s in trace.recording.training.parameters
    )


def _wider(trace: Trace, member: AbsorbedUpdate) -> str:
    """Code that keeps the updated tensor in float32."""
    recording = trace.recording
    name = recording.parameter_names[member.owner].rpartition(".")[2]
    if not member.by_hand:
        return "model.float()  # and torch.autocast for the forward pass"
    if _trained(trace, member):
        return (
            "master = [p.detach().float() for p in model.parameters()]  # update these, then"
            " p.copy_(m)"
        )
    buffer = recording.parameter_kinds[member.owner] == "buffer"
    if buffer and name.isidentifier() and member.at.module:
        return f"self.{name} = self.{name}.float()"  # written by the module itself
    return "ema = {k: v.detach().float().clone() for k, v in model.state_dict().items()}"


def _in_float32(trace: Trace, stuck: list[AbsorbedUpdate]) -> Fix:
    """The fix of float32, with what it does to a replayed update. It concerns the whole program:
    no line was tried."""
    if _wide(stuck[0]):
        return Fix(
            "learn the offset from a reference value, which small steps can change",
            "value = reference + self.offset",
        )
    fix = Fix("keep these values in float32", _wider(trace, stuck[0]))
    tried = (moves_in_float32(trace.recording, m.owner, m.at.op) for m in stuck[:TRIED])
    moved, numel = next((t for t in tried if t is not None), (0, 0))
    if not moved:
        return fix
    title = f"{fix.title}: {moved:,} of {numel:,} elements then change, instead of none"
    return replace(fix, title=title)


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
