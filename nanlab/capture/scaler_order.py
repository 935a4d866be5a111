"""Gradients that were used in the wrong order: clipped before they were unscaled, taken without
unscaling, clipped to zero."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import takewhile

import numpy as np

from nanlab.capture.magnitudes import StepRows, place_of
from nanlab.history import SCALED, History, Misuse, ParameterStep
from nanlab.operators import in_place, with_forms
from nanlab.trace.op import walk
from nanlab.trace.recording import Op, Recording, Sink

UNSCALES = "_amp_foreach_non_finite_check_and_unscale_"
_HARMLESS = in_place(with_forms("zero", "copy", lists=True) | with_forms("add", lists=True)) | {
    UNSCALES
}  # accumulation too
MOST_HOPS = 16


def _written_in_place(recording: Recording, position: int) -> Op | None:
    row = recording.op(position)
    return row if row is not None and row.inplace and not row.backward else None


def _rms(recording: Recording, position: int) -> float:
    stats = recording.stats(position)
    return (stats.rms or 0.0) if stats is not None else 0.0


def changed_before_unscale(recording: Recording, history: History, position: int) -> int:
    """The row that changed a gradient between the backward pass and the unscaling at ``position``,
    -1 if none did."""
    for gradient, _ in recording.operands(position):
        row = _written_in_place(recording, gradient)
        if row is None or row.name in _HARMLESS:
            continue
        before = next((p for p, slot in recording.operands(gradient) if slot == row.output), None)
        # 0 where the norm was infinite: that tells nothing of the scale
        after = _rms(recording, gradient)
        ratio = _rms(recording, before) / after if before is not None and after else 1.0
        if ratio <= 1.01:
            continue
        place = place_of(recording, gradient)
        if place is not None:
            history.misuses.append(Misuse("clip-before-unscale", place, position, 0.0, ratio))
        return gradient
    return -1


def _unscaled(recording: Recording, used: int, gradient: int, scale: float) -> bool:
    """Whether the loss scale was divided out of a gradient, by a scaler or by hand."""
    position = used
    for _ in range(MOST_HOPS):
        if position == gradient:
            break
        row = _written_in_place(recording, position)
        if row is None:
            return True  # computed anew: not ours to judge
        if row.name == UNSCALES:
            return True
        position = next(
            (p for p, slot in recording.operands(position) if slot == row.output), gradient
        )
    before, after = _rms(recording, gradient), _rms(recording, used)
    return not before or after <= before / scale**0.5


def _was_unscaled(recording: Recording, gradient: int) -> bool:
    """Whether a scaler had divided its scale out of what a backward pass then added to."""
    position: int | None = gradient
    for _ in range(MOST_HOPS):
        row = recording.op(position) if position is not None and position >= 0 else None
        if row is None or not row.inplace:
            return False
        if row.name == UNSCALES:
            return True
        assert position is not None
        position = next((p for p, slot in recording.operands(position) if slot == row.output), None)
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
    """Note the first parameter that an optimizer updated by a gradient that still bore the loss
    scale, or never bore it."""
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
        place = place_of(recording, step.value)
        if place is not None and place.position >= rows.start:
            name = recording.parameter_names[step.owner]
            before = _was_unscaled(recording, step.gradient)
            history.misuses.append(
                Misuse("bypass", place, step.position, scale, scale, name, before)
            )
            return


def _not_smaller(rows: StepRows, steps: list[ParameterStep], scale: float) -> list[ParameterStep]:
    """The updated parameters whose gradient did not become smaller, as it does when a loss scale is
    divided out; one pass for all."""
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
    """Note a loss that went backward without the scale, wholly or in part, though its gradients
    were then unscaled."""
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
        place = place_of(recording, loss.root)
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
    """The other operand of a product of two scalars, if it is a power of two as large as a loss
    scale."""
    values = [recording.value(source) for source, slot in recording.operands(product) if slot == 1]
    value = values[0] if values and values[0] is not None else 0.0
    return value if SCALED <= value < math.inf and math.frexp(value)[0] == 0.5 else 0.0


def note_clipping(rows: StepRows, history: History, steps: list[ParameterStep]) -> list[Sink]:
    """Note a norm that is not finite and was spread to every gradient; the norm as a sink where it
    made them zero."""
    recording = rows.recording
    if not recording.bad:
        return []
    for step in steps:
        if (
            step.used is None
            or step.gradient is None
            or step.used == step.gradient
            or step.used < rows.start
        ):
            continue
        before, after = recording.stats(step.gradient), recording.stats(step.used)
        if before is None or after is None or before.zero == before.numel or not before.is_finite:
            continue
        if after.is_finite and after.zero != after.numel:
            continue
        if any(s.gradient in recording.bad for s in steps):
            _note_spread(rows, history, steps, step.used)
            return []
        if (
            after.is_finite
            and (norm := _bad_ancestor(recording, step.used, step.gradient)) is not None
        ):
            return [Sink("gradient", norm, step.position, recording.parameter_names[step.owner])]
    return []


def _note_spread(rows: StepRows, history: History, steps: list[ParameterStep], used: int) -> None:
    recording = rows.recording
    guilty = [recording.parameter_names[s.owner] for s in steps if s.gradient in recording.bad]
    place = place_of(recording, used)
    if guilty and place is not None and not any(m.kind == "clip-spread" for m in history.misuses):
        shown = ", ".join(guilty[:3]) + (f" and {len(guilty) - 3} more" if len(guilty) > 3 else "")
        history.misuses.append(
            Misuse("clip-spread", place, used, 0.0, float(len(steps) - len(guilty)), shown)
        )


def _bad_ancestor(recording: Recording, start: int, gradient: int) -> int | None:
    above = walk([start], lambda at: (p for p in recording.parents(at) if p > gradient))
    return next((position for position in above if position in recording.bad), None)
