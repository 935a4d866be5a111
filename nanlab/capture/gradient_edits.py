"""Gradients edited between backward and update: unscaled, clipped, averaged; in which order."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import groupby, takewhile
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import torch

from nanlab.capture.ledger import storage_of
from nanlab.operators import having, in_place, with_forms
from nanlab.trace.frames import StepRows
from nanlab.trace.history import (
    SCALED,
    GradientEdit,
    History,
    Misuse,
    ParameterStep,
    Place,
    place_at,
)
from nanlab.trace.op import Op, walk
from nanlab.trace.recording import Recording, Sink

if TYPE_CHECKING:
    from nanlab.capture.dispatch import OpRecorder


# Gradients that were used in the wrong order: clipped before they were unscaled, taken without
# unscaling, clipped to zero.

UNSCALES = "_amp_foreach_non_finite_check_and_unscale_"
_HARMLESS = in_place(with_forms("zero", "copy", lists=True) | with_forms("add", lists=True)) | {
    UNSCALES
}  # accumulation too
MOST_ORDER_HOPS = 16


def _written_in_place(recording: Recording, position: int) -> Op | None:
    row = recording.op(position)
    return row if row is not None and row.inplace and not row.backward else None


def _rms(recording: Recording, position: int) -> float:
    stats = recording.stats(position)
    return (stats.rms or 0.0) if stats is not None else 0.0


def changed_before_unscale(recording: Recording, history: History, position: int) -> int:
    """The row that changed a gradient between backward and unscaling; -1 if none did."""
    for gradient, _ in recording.operands(position):
        row = _written_in_place(recording, gradient)
        if row is None or row.name in _HARMLESS:
            continue
        before = next(iter(row.inputs), None)
        # 0 where the norm was infinite: that tells nothing of the scale
        after = _rms(recording, gradient)
        ratio = _rms(recording, before) / after if before is not None and after else 1.0
        if ratio <= 1.01:
            continue
        place = place_at(recording, gradient)
        if place is not None:
            history.misuses.append(Misuse("clip-before-unscale", place, position, 0.0, ratio))
        return gradient
    return -1


def _unscaled(recording: Recording, used: int, gradient: int, scale: float) -> bool:
    """Whether the loss scale was divided out of a gradient, by a scaler or by hand."""
    position = used
    for _ in range(MOST_ORDER_HOPS):
        if position == gradient:
            break
        row = _written_in_place(recording, position)
        if row is None:
            return True  # computed anew: not ours to judge
        if row.name == UNSCALES:
            return True
        position = next(iter(row.inputs), gradient)
    before, after = _rms(recording, gradient), _rms(recording, used)
    return not before or after <= before / scale**0.5


def _was_unscaled(recording: Recording, gradient: int) -> bool:
    """Whether a scaler had divided its scale out of what a backward pass then added to."""
    position: int | None = gradient
    for _ in range(MOST_ORDER_HOPS):
        row = recording.op(position) if position is not None and position >= 0 else None
        if row is None or not row.inplace:
            return False
        if row.name == UNSCALES:
            return True
        position = next(iter(row.inputs), None)
    return False


def note_factors(rows: StepRows, history: History) -> None:
    """Work out by how much each loss of the step was multiplied before backward was called."""
    recording = rows.recording
    for i in range(len(history.losses) - 1, -1, -1):
        loss = history.losses[i]
        if loss.position < rows.start:
            break
        source = loss.source if loss.scaled else _multiplied(recording, loss.root)
        if source == loss.root:
            continue
        value, scaled = recording.value(source), recording.value(loss.root)
        if value and scaled is not None and math.isfinite(value):
            factor = abs(scaled / value)
            history.losses[i] = replace(loss, factor=factor if math.isfinite(factor) else math.inf)
            if SCALED <= factor < math.inf and not loss.scaled and math.frexp(factor)[0] == 0.5:
                history.scaled_lines.add(loss.line)


def _multiplied(recording: Recording, root: int) -> int:
    """The operand that a product was made from; the root itself if it is no product."""
    row = recording.op(root)
    if row is None or row.name not in ("mul", "div"):
        return root
    return next((p for p, slot in recording.operands(root) if slot == 0), root)


def still_scaled(rows: StepRows, history: History, steps: list[ParameterStep]) -> None:
    """Note the first parameter that was updated by a gradient still scaled, or never scaled."""
    if history.unscales and history.unscales[-1].position >= rows.start:
        note_unscaled_parts(rows, history)
    recording = rows.recording
    recent = takewhile(lambda loss: loss.position >= rows.start, reversed(history.losses))
    scale = next((loss.factor for loss in recent if loss.scaled), 0.0)
    if not 2.0 < scale < math.inf:
        return
    for step in _not_smaller(rows, steps, scale):
        assert step.used is not None and step.gradient is not None and step.value is not None
        if _unscaled(recording, step.used, step.gradient, scale):
            continue
        place = place_at(recording, step.value)
        if place is not None and place.position >= rows.start:
            name = recording.parameter_names[step.owner]
            before = _was_unscaled(recording, step.gradient)
            history.misuses.append(
                Misuse("bypass", place, step.position, scale, scale, name, before)
            )
            return


def _not_smaller(rows: StepRows, steps: list[ParameterStep], scale: float) -> list[ParameterStep]:
    """Updated parameters whose gradient was not made smaller, as by dividing out a loss scale."""
    done = [
        s for s in steps if s.used is not None and s.gradient is not None and s.value is not None
    ]
    inside = [s for s in done if min(s.used or 0, s.gradient or 0) >= rows.start]
    rms = np.nan_to_num(rows.numbers["rms"])
    before = rms[np.array([s.gradient for s in inside], np.int64) - rows.start]
    after = rms[np.array([s.used for s in inside], np.int64) - rows.start]
    smaller = (before == 0.0) | (after <= before / scale**0.5)
    kept = [s for s, small in zip(inside, smaller.tolist(), strict=True) if not small]
    return [*kept, *(s for s in done if min(s.used or 0, s.gradient or 0) < rows.start)]


def note_unscaled_parts(rows: StepRows, history: History) -> None:
    """Note a loss that went backward (partly) unscaled, though its gradients were unscaled."""
    recording = rows.recording
    begin = next((u.position for u in reversed(history.unscales) if u.position < rows.start), 0)
    losses = list(takewhile(lambda loss: loss.position > begin, reversed(history.losses)))
    checks = list(
        takewhile(lambda check: check.position >= rows.start, reversed(history.unscales))
    )[::-1]
    stepped = [
        s.position
        for s in takewhile(lambda step: step.position > begin, reversed(history.optimizer_steps))
    ]
    scales = [loss.factor for loss in losses if loss.scaled and SCALED <= loss.factor < math.inf]
    for loss in losses:
        check = next((u for u in checks if u.position > loss.position), None)
        if loss.scaled or loss.root < 0 or check is None:
            continue
        if any(loss.position < position < check.position for position in stepped):
            continue
        scale = _scaled_term(recording, loss.root) or (
            max(scales, default=0.0) if loss.factor < SCALED else 0.0
        )
        place = place_at(recording, loss.root)
        if scale and place is not None:
            call = next(
                (p for p in reversed(recording.passes) if p.position <= loss.position), None
            )
            place = replace(place, line=call.line, site=call.site) if call is not None else place
            history.misuses.append(Misuse("part-unscaled", place, check.position, scale, scale))
            return


def _scaled_term(recording: Recording, root: int, depth: int = 4) -> float:
    """The loss scale that only one term of a sum bears; 0 if there is none."""
    row = recording.op(root)
    if row is None or depth == 0 or row.name not in ("add", "sub"):
        return 0.0
    for term, _ in recording.operands(root):
        made = recording.op(term)
        if made is not None and made.name == "mul" and (scale := _scalar_factor(recording, term)):
            return scale
        if scale := _scaled_term(recording, term, depth - 1):
            return scale
    return 0.0


def _scalar_factor(recording: Recording, product: int) -> float:
    """The other factor of a product of two scalars, if it is a power of two like a loss scale."""
    values = [recording.value(source) for source, slot in recording.operands(product) if slot == 1]
    value = values[0] if values and values[0] is not None else 0.0
    return value if SCALED <= value < math.inf and math.frexp(value)[0] == 0.5 else 0.0


def note_clipping(rows: StepRows, history: History, steps: list[ParameterStep]) -> list[Sink]:
    """Note a norm that is not finite and spread to all gradients; a sink if it zeroed them."""
    recording = rows.recording
    if not recording.bad:
        return []
    for step in steps:
        used, gradient = step.used, step.gradient
        if used is None or gradient is None or used == gradient or used < rows.start:
            continue
        before, after = recording.stats(gradient), recording.stats(used)
        if before is None or after is None or before.all_zero or not before.is_finite:
            continue
        if after.is_finite and not after.all_zero:
            continue
        if any(s.gradient in recording.bad for s in steps):
            _note_spread(rows, history, steps, used)
            return []
        norm = _bad_ancestor(recording, used, gradient) if after.is_finite else None
        if norm is not None:
            return [Sink("gradient", norm, step.position, recording.parameter_names[step.owner])]
    return []


def _note_spread(rows: StepRows, history: History, steps: list[ParameterStep], used: int) -> None:
    recording = rows.recording
    guilty = [recording.parameter_names[s.owner] for s in steps if s.gradient in recording.bad]
    place = place_at(recording, used)
    if guilty and place is not None and not any(m.kind == "clip-spread" for m in history.misuses):
        shown = ", ".join(guilty[:3]) + (f" and {len(guilty) - 3} more" if len(guilty) > 3 else "")
        history.misuses.append(
            Misuse("clip-spread", place, used, 0.0, float(len(steps) - len(guilty)), shown)
        )


def _bad_ancestor(recording: Recording, start: int, gradient: int) -> int | None:
    above = walk([start], lambda at: (p for p in recording.parents(at) if p > gradient))
    return next((position for position in above if position in recording.bad), None)


# What an optimizer step is given: gradients that were unscaled, clipped or averaged since the
# backward pass, and its rates.

CLAMPS = having("bounds", in_place=True, lists=True) | {"where"}
FACTORS = having("scales", in_place=True, lists=True)
MOST_HOPS = 12
MOST_VISITS = 4000  # rows that are walked back over from the gradients of one optimizer step
NEAR = 0.01  # relative distance up to which a factor is taken for the loss scale


def note_edits(rows: StepRows, history: History, steps: list[ParameterStep]) -> None:
    """Add an entry to ``history.edits`` for each optimizer step that took other gradients than
    backward had left.

    The way back is walked for one parameter only, the one whose gradient shrank most; the numbers
    of the others are in their own rows.
    """
    recent = takewhile(lambda loss: loss.position >= rows.start, reversed(history.losses))
    factor = next((loss.factor for loss in recent if 2.0 < loss.factor < math.inf), 1.0)
    for position, group in groupby(steps, key=lambda step: step.position):
        changed = [
            s
            for s in group
            if s.used is not None and s.gradient is not None and s.used > s.gradient
        ]
        chosen = _shrunk_most(rows, changed)
        if chosen is not None:
            scale, at, constant = _way_back(rows.recording, chosen, factor)
            history.edits.append(GradientEdit(position, scale, at, constant))


def bad_rates(
    recording: Recording, source: Callable[[torch.Tensor], int], optimizer: Any
) -> list[Sink]:
    """A sink for each learning rate in a tensor that holds a NaN or an infinity."""
    rates = [
        source(g["lr"]) for g in optimizer.param_groups if isinstance(g.get("lr"), torch.Tensor)
    ]
    return [
        Sink("state", rate, recording.end - 1, "learning rate")
        for rate in rates
        if recording.may_be_bad(rate)
    ]


def bad_moments(
    ops: OpRecorder, optimizer: Any, owner_of: Callable[[torch.Tensor], int]
) -> list[Sink]:
    """A sink for each tensor of an optimizer's state that holds a NaN or an infinity."""
    recording, found = ops.recording, []
    states = optimizer.state.items() if recording.bad or recording.pending else ()
    for parameter, state in states:
        if not isinstance(parameter, torch.Tensor):
            continue
        for name, value in state.items():
            if isinstance(value, torch.Tensor) and value.is_floating_point():
                storage = storage_of(value)
            else:
                storage = None
            entry = ops.ledger.entries.get(storage._cdata) if storage is not None else None
            if entry is not None and recording.may_be_bad(entry.last):
                owner = recording.parameter_names[owner_of(parameter)]
                found.append(Sink("state", entry.last, recording.end - 1, f"{owner}.{name}"))
    return found


def adds_to_last(
    recording: Recording, used: Sequence[int | None], last: Sequence[int | None]
) -> bool:
    """Whether the gradients of a step (rows) were added to those of the last: never cleared."""
    for now, before in zip(used, last, strict=False):
        row = recording.op(now) if now is not None and now >= 0 and before is not None else None
        if row is not None and row.name in ("add", "add_"):
            return before in recording.parents(now)  # type: ignore[arg-type]
    return False


def earliest_of(
    recording: Recording, used: Sequence[int | None], start: int, written: set[int]
) -> int:
    """The first row from ``start`` that gradients come from, not through ``written``; or -1."""
    own = [row for row in used if row is not None and row >= start]
    made = walk(
        own,
        lambda at: (p for p in recording.parents(at) if p >= start and p not in written),
        MOST_VISITS,
    )
    return min(made, default=-1)


def number_of(value: Any) -> float | None:
    """A setting of an optimizer as a number; None if it is none."""
    try:
        return float(value)
    except (TypeError, ValueError):
        return None


def _shrunk_most(rows: StepRows, steps: list[ParameterStep]) -> ParameterStep | None:
    inside = [s for s in steps if s.gradient is not None and s.gradient >= rows.start]
    if not inside:
        return None
    before: npt.NDArray[np.int64] = np.array([s.gradient for s in inside], np.int64) - rows.start
    after: npt.NDArray[np.int64] = np.array([s.used for s in inside], np.int64) - rows.start
    rms = rows.numbers["rms"]
    with np.errstate(divide="ignore", invalid="ignore"):
        ratio = rms[after] / rms[before]
    return inside[int(np.argmin(np.where(np.isfinite(ratio), ratio, np.inf)))]


def _way_back(
    recording: Recording, step: ParameterStep, factor: float
) -> tuple[float, Place | None, bool]:
    """(scale divided out, last other operation that changed its size, whether by a number)."""
    assert step.used is not None and step.gradient is not None
    scale, at, constant = 1.0, -1, False
    position = step.used
    for _ in range(MOST_HOPS):
        row = recording.op(position)
        if row is None or position <= step.gradient:
            break
        op, source = row.name, _source(recording, position, row.output, step.gradient)
        ratio = _ratio(recording, source, position)
        if op == UNSCALES or (op in FACTORS and factor > 2.0 and abs(ratio / factor - 1.0) < NEAR):
            scale *= _power_of_two(ratio)
        elif at < 0 and op in CLAMPS | FACTORS:
            at, constant = position, bool(row.scaled)
        if source < 0:
            break
        position = source
    return scale, place_at(recording, at) if at >= 0 else None, constant


def _source(recording: Recording, position: int, output: int, gradient: int) -> int:
    """The operand that a changed gradient was made from; -1 if it is none of the gradient's."""
    operands = recording.operands(position)
    row = recording.op(position)
    copied = row is not None and row.name in ("copy_", "_foreach_copy_")
    slots = {slot: source for source, slot in operands if source >= gradient}
    if copied and (sources := [s for slot, s in slots.items() if slot != output and s > gradient]):
        return sources[0]
    return slots.get(output, next(iter(slots.values()), -1))


def _ratio(recording: Recording, before: int, after: int) -> float:
    """By how much larger the rms was before; 1 where that cannot be told."""
    old, new = recording.stats(before) if before >= 0 else None, recording.stats(after)
    return old.rms / new.rms if old is not None and new is not None and old.rms and new.rms else 1.0


def _power_of_two(ratio: float) -> float:
    """The power of two beside a measured ratio, if it is one but for rounding."""
    near: float = 2.0 ** round(math.log2(ratio)) if 0.0 < ratio < math.inf else 1.0
    return near if abs(ratio / near - 1.0) < NEAR else ratio
