"""The loss scaler: too large a scale, or one bypassed, not updated, used out of order."""

from __future__ import annotations

import ast
import math
import re
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import pairwise, takewhile
from typing import Any, Literal

import numpy as np
import torch

from nanlab.analysis.loss_scale import Skip, below_one, collapse, skips
from nanlab.analysis.provenance import Origin, depends_on_scale, harmful_origins
from nanlab.analysis.training import line_fields, scale_of, undivided_factor, where
from nanlab.findings.fault import Fault, plural
from nanlab.findings.rule import Edit, Finding, Fix, Severity, rule
from nanlab.formats import format_of
from nanlab.operators import in_place, with_forms
from nanlab.program.readings import text_of
from nanlab.topics.training import blame_update, drove_away, growth_of
from nanlab.trace import Trace
from nanlab.trace.frames import StepRows, parameter_columns
from nanlab.trace.history import (
    SCALED,
    UNSCALE,
    Loss,
    Misuse,
    OptimizerStep,
    ParameterStep,
    place_at,
)
from nanlab.trace.op import OPTIMIZER, Op, location, walk
from nanlab.trace.recording import Recording

# Gradients used in the wrong order. Noted when a step ends.

_HARMLESS = in_place(with_forms("zero", "copy", lists=True) | with_forms("add", lists=True)) | {
    UNSCALE
}  # accumulation too
MOST_ORDER_HOPS = 16  # operations between two uses of a gradient
MOST_ROWS = 20_000  # that a loss is computed from, among which a factor is sought


def _written_in_place(recording: Recording, position: int) -> Op | None:
    row = recording.at(position)
    return row if row.inplace and not row.backward else None


def _rms(recording: Recording, position: int) -> float:
    stats = recording.stats(position)
    return (stats.rms or 0.0) if stats is not None else 0.0


def note_early_clipping(rows: StepRows) -> None:
    """Note gradients that were made smaller between backward and unscaling."""
    for check in reversed(rows.events(rows.history.unscales)):
        _note_early_clipping(rows.recording, check.position)


def _note_early_clipping(recording: Recording, position: int) -> None:
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
            found = Misuse("clip-before-unscale", place, position, 0.0, ratio)
            recording.history.misuses.append(found)
        return


def note_factors(rows: StepRows) -> None:
    """Note the factor by which each loss of the step was multiplied before backward."""
    recording, history = rows.recording, rows.history
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
            by_hand = not loss.scaled and math.frexp(factor)[0] == 0.5
            if SCALED <= factor < math.inf and by_hand and _is_divided_out(rows, factor):
                history.scaled_lines.add(loss.line)


def _is_divided_out(rows: StepRows, scale: float) -> bool:
    """Whether an optimizer used gradients that had become smaller by the factor on the loss."""
    pairs = [(s.gradient, s.used) for s in rows.parameter_steps]
    sizes = [
        (_rms(rows.recording, gradient), _rms(rows.recording, used))
        for gradient, used in pairs
        if gradient is not None and used is not None
    ]
    return any(before > 0.0 and after <= before / scale**0.5 for before, after in sizes)


def _multiplied(recording: Recording, root: int) -> int:
    """The first operand of a product or quotient; the root itself if it is neither."""
    if recording.at(root).name not in ("mul", "div"):
        return root
    return next((p for p, slot in recording.operands(root) if slot == 0), root)


def still_scaled(rows: StepRows) -> None:
    """Note the first parameter that was updated with a gradient still scaled."""
    recording, history = rows.recording, rows.history
    if history.unscales and history.unscales[-1].position >= rows.start:
        note_unscaled_parts(rows)
    losses = rows.events(history.losses)
    scale = next((loss.factor for loss in losses if loss.scaled), 0.0)
    if not 2.0 < scale < math.inf:
        return
    for step in _not_smaller(rows, scale):
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


def _not_smaller(rows: StepRows, scale: float) -> list[ParameterStep]:
    """Updated parameters whose gradient did not shrink, as it does by unscaling."""
    steps = rows.parameter_steps
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


def _unscaled(recording: Recording, used: int, gradient: int, scale: float) -> bool:
    """Whether the loss scale was divided out of a gradient, by a scaler or by hand."""
    position = used
    for _ in range(MOST_ORDER_HOPS):
        if position == gradient:
            break
        row = _written_in_place(recording, position)
        if row is None or row.name == UNSCALE:  # computed anew: not ours to judge
            return True
        position = next(iter(row.inputs), gradient)
    before, after = _rms(recording, gradient), _rms(recording, used)
    return not before or after <= before / scale**0.5


def _was_unscaled(recording: Recording, gradient: int) -> bool:
    """Whether a scaler had unscaled the gradient before a backward pass added to it."""
    position = gradient
    for _ in range(MOST_ORDER_HOPS):
        row = recording.at(position)
        if not row.inplace:
            return False
        if row.name == UNSCALE:
            return True
        position = next(iter(row.inputs), -1)
    return False


def note_unscaled_parts(rows: StepRows) -> None:
    """Note a loss that was not scaled, or only in part, though its gradients were unscaled."""
    recording, history = rows.recording, rows.history
    begin = next((u.position for u in reversed(history.unscales) if u.position < rows.start), 0)
    losses = list(takewhile(lambda loss: loss.position > begin, reversed(history.losses)))
    checks = rows.events(history.unscales)[::-1]
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
        kind: Literal["part-unscaled", "never-scaled"] = "part-unscaled"
        if not scale and not scales and loss.factor < SCALED:
            scale, kind = _scale_of_another(recording, loss, check.position), "never-scaled"
        place = place_at(recording, loss.root)
        if scale and place is not None:
            call = next(
                (p for p in reversed(recording.passes) if p.position <= loss.position), None
            )
            place = replace(place, line=call.line, site=call.site) if call is not None else place
            history.misuses.append(Misuse(kind, place, check.position, scale, scale))
            return


def _scale_of_another(recording: Recording, loss: Loss, check: int) -> float:
    """The scale that gradients were divided by, where nothing that the loss was computed from was
    multiplied by it; 0 where something was, or may have been."""
    inverse, _ = recording.operands(check)[-1]
    divided = recording.value(inverse)
    scale = 1.0 / divided if divided else 0.0
    given = recording.at(loss.position - 1).name != "ones_like"  # a gradient, which may bear it
    if given or not SCALED <= scale < math.inf or _bears(recording, loss.root, scale):
        return 0.0
    return scale


def _bears(recording: Recording, root: int, scale: float) -> bool:
    """Whether anything that a row was computed from was multiplied by a scale, or may have been."""
    seen = 0
    for position in walk([root], partial(_made_of, recording), MOST_ROWS + 1):
        seen += 1
        factors = recording.scalars.get(recording.at(position).call, ())
        if scale in factors or _scalar_factor(recording, position) == scale:
            return True
    return seen > MOST_ROWS


def _made_of(recording: Recording, position: int) -> Sequence[int]:
    """The operands of a row, but for what an optimizer wrote: an earlier step."""
    row = recording.at(position)
    return () if not row or row.phase == OPTIMIZER else recording.parents(position)


def _scaled_term(recording: Recording, root: int) -> float:
    """The loss scale on some terms of a sum, and not on all; 0 if there is none."""
    terms = list(_terms(recording, root))
    scales = [_scalar_factor(recording, t) for t in terms if recording.at(t).name == "mul"]
    scale = max(scales, default=0.0)
    return scale if scale and not all(_bears(recording, term, scale) for term in terms) else 0.0


def _terms(recording: Recording, root: int, depth: int = 4) -> Iterator[int]:
    """What a row is the sum of."""
    if depth == 0 or recording.at(root).name not in ("add", "sub"):
        yield root
        return
    for term, _ in recording.operands(root):
        yield from _terms(recording, term, depth - 1)


def _scalar_factor(recording: Recording, product: int) -> float:
    """The second factor of a product, if it looks like a loss scale: a power of two."""
    values = [recording.value(source) for source, slot in recording.operands(product) if slot == 1]
    value = values[0] if values and values[0] is not None else 0.0
    return value if SCALED <= value < math.inf and math.frexp(value)[0] == 0.5 else 0.0


# Findings.

_STEPS = "scaler.scale(loss).backward(), scaler.step(opt), scaler.update()"


def scaled_loss(recording: Recording) -> Fix:
    """The fix of a GradScaler, with float32 parameters, as it takes no float16 gradients."""
    seen = [str(d).split(":")[0] for d in recording.devices.items]
    device = next((d for d in seen if d != "cpu"), "cpu")
    scaler = f'scaler = torch.amp.GradScaler("{device}")  # {_STEPS}'
    if not held_in_half(recording):
        return Fix("scale the loss", scaler)
    return Fix(
        "scale the loss, with parameters in float32: GradScaler takes no gradients in float16",
        f'model.float()  # and the forward pass under torch.autocast("{device}",'
        f" dtype=torch.float16)\n{scaler}",
    )


def held_in_half(recording: Recording) -> bool:
    """Whether a parameter is in half precision when first read, or when updated."""
    if any(s.kind == "parameter" and "float16" in s.dtype for s in recording.sources.values()):
        return True
    return any(
        row.phase == OPTIMIZER and row.inplace and "float16" in str(row.dtype)
        for row in recording.all_ops()
    )


def loss_factor(recording: Recording, position: int) -> float:
    """The factor on the loss of a row's backward pass; 1 if there was none."""
    losses = recording.training.losses
    before = [loss for loss in losses if loss.position <= position]
    after = losses[len(before) : len(before) + 1]
    backward = recording.at(position).backward
    chosen = (before[-1:] or after) if backward else (after or before[-1:])
    if not chosen:
        return 1.0
    if math.isfinite(chosen[0].factor):
        return chosen[0].factor
    return _written_factor(recording, chosen[0].root)


def _written_factor(recording: Recording, root: int) -> float:
    """The Python number by which a loss was multiplied when it overflowed; inf if unknown."""
    row = recording.at(root)
    numbers = recording.scalars.get(row.call, ()) if row.name == "mul" else ()
    return next((abs(x) for x in numbers), math.inf)


@rule(
    "error",
    family="training",
    events=("training.scaled",),
    more_specific_than=("training",),
    origins=("operation",),
    example="""
        net = nn.Linear(4, 2)
        half = net(torch.ones(3, 4)).half()
        loss = half.float().mean()  # here
        (loss * 2.0**24).backward()
    """,
    fix={"2.0**24": "2.0**8"},
)
def loss_scale_overflow(fault: Fault) -> Finding | None:
    """The gradients overflow at the loss scale in use, but not at a smaller one."""
    recording, origin, finding = fault.recording, fault.origin, fault.finding
    if not fault.row:
        return None
    if _is_reciprocal_of_zero_scale(recording, origin):
        return _scale_is_zero(finding)
    factor = _factor(recording, origin.position)
    scaled = factor >= SCALED and not _is_dwarfed(fault.row, factor)
    if scaled and (depends_on_scale(recording, origin) or _is_root(recording, origin)):
        return _too_large(finding, factor)
    return _too_large(finding, 0.0) if _is_overflowing_scale(recording, origin) else None


def _is_dwarfed(row: Op, factor: float) -> bool:
    """Whether the gradients grew by more than the scale on the way to the overflow."""
    dtype = row.dtype
    return dtype != torch.float16 and 1.0 < factor < math.sqrt(format_of(dtype).max)


def _too_large(finding: Finding, factor: float) -> Finding:
    scale = f"{factor:g}" if factor else "on the loss"
    return loss_scale_overflow.retold(
        finding,
        f"the loss scale {scale} is too large: {finding.op} overflows",
        "A dynamic scaler finds the scale itself, and skips the steps that overflow.",
        fixes=[Fix("use a dynamic loss scale", _STEPS.replace(",", ";"))],
    )


def _is_reciprocal_of_zero_scale(recording: Recording, origin: Origin) -> bool:
    """Whether a scaler divided by its own scale of zero."""
    if recording.at(origin.position).name != "reciprocal":
        return False
    zero = any(recording.value(source) == 0.0 for source, _ in recording.operands(origin.position))
    return zero and any(recording.at(p).name == UNSCALE for p in origin.path)


def _scale_is_zero(finding: Finding) -> Finding:
    return replace(
        finding,
        cause="loss-scale-overflow",
        title="the loss scale is 0: every gradient becomes 0, and unscaling makes it 0 times inf",
        explanation=(
            "A dynamic scaler halves its scale in each step that overflows, at worst down to 0,"
            " from which doubling never raises it. A scaler restored from such a checkpoint"
            " starts at 0."
        ),
        phase="optimizer",
        fixes=[
            Fix(
                "start with a new scaler",
                "scaler = torch.amp.GradScaler(device)  # instead of load_state_dict",
            )
        ],
    )


def _factor(recording: Recording, position: int) -> float:
    """The factor on the loss of a row, or a finite one of another loss."""
    factor = loss_factor(recording, position)
    if math.isfinite(factor):
        return factor
    losses = recording.training.losses
    return max((other.factor for other in losses if math.isfinite(other.factor)), default=1.0)


def _is_root(recording: Recording, origin: Origin) -> bool:
    """Whether the scaled loss itself overflowed."""
    return any(
        loss.root == origin.position and loss.factor == math.inf
        for loss in recording.training.losses
    )


def _is_overflowing_scale(recording: Recording, origin: Origin) -> bool:
    """Whether the scale overflowed in the cast to the dtype of the loss."""
    row, stats = recording.at(origin.position), recording.stats(origin.position)
    if stats is None or stats.numel != 1 or row.name != "_to_copy":
        return False
    value = next((recording.value(p) for p, _ in recording.operands(origin.position)), None)
    joins = len(origin.path) > 1 and any(
        loss.root == origin.path[1] for loss in recording.training.losses
    )
    return bool(joins and value and value >= SCALED)


@rule(
    "error",
    family="training",
    events=("training.unscales",),
    example="""
        net = nn.Linear(4, 2)
        opt = torch.optim.SGD(net.parameters(), lr=0.1)
        scaler = torch.amp.GradScaler("cpu", init_scale=2.0**24)
        for i in range(5):
            opt.zero_grad()
            half = net(torch.ones(3, 4)).half()
            wide = half.float()  # here
            scaler.scale(wide.square().mean()).backward()
            scaler.step(opt)
            scaler.update(2.0**24)
    """,
    fix={"scaler.update(2.0**24)": "scaler.update()"},
)
def loss_scale_overflow_(trace: Trace) -> Iterator[Finding]:
    """The gradients overflow at the loss scale in use."""
    entries = skips(trace.recording)
    if not entries or any(update.before == 0.0 for update in trace.recording.training.scales):
        return  # a scale of zero is told as the fault that it makes
    first, last = entries[0], entries[-1]
    updated = any(u.position > last.position for u in trace.recording.training.scales)
    if trace.recording.ended == "fault" and len(entries) == 1 and not updated:
        return  # the run ended by that fault before the scaler could lower its scale
    at = f", first by the gradient of {first.parameter}" if first.parameter else ""
    severity: Severity = "warning"
    fixes = [_IN_FLOAT32]
    if fatal := collapse(entries):
        title, more, severity = _fatal_title(entries), f"Here {fatal}{at}.", "error"
        fixes = [_fatal_fix(entries)]
    elif low := below_one(entries):
        title = f"the loss scale fell to {last.after:g}: the gradients overflow without any scaling"
        title += at
        more = f"Below 1 the scaler makes gradients smaller instead of larger; {low}."
    else:
        fits = f", finite at 2^{round(math.log2(last.finite_at))}" if last.finite_at else ""
        title = (
            f"the loss scaler skipped {plural(len(entries), 'step')}: {_shown(first.scale)} →"
            f" {_shown(last.after)}{fits}{at}"
        )
        more = "A dynamic scaler starts high and halves the scale until the gradients fit."
        if last.known_by == "no scale":
            more = "The last of them fails at any scale: its loss, or a forward value, is at fault."
        more += " The skipped steps changed no weight."
        severity, fixes = "note", []
    place = where(trace.recording, first.place) if first.place else {"phase": "backward"}
    symptom = "grad-nan" if fatal else "grad-inf"
    yield loss_scale_overflow_.finding(
        title, more, severity, step=first.step, symptom=symptom, fixes=fixes, **place
    )


def _shown(scale: float) -> str:
    """A loss scale in words: ``65,536``, ``2^24``."""
    power = math.log2(scale) if scale > 0 else 0.5
    return f"2^{power:.0f}" if scale >= 2.0**20 and power == round(power) else f"{scale:,g}"


def _lowered(entries: Sequence[Skip]) -> bool:
    return any(0.0 < e.after < e.scale for e in entries)


def _fatal_title(entries: Sequence[Skip]) -> str:
    first, last = entries[0], entries[-1]
    count = plural(len(entries), "step")
    if all(b.scale > a.after for a, b in pairwise(entries)) and len(entries) > 1:
        return (
            f"the loss scale is {first.scale:g} again in each of {count}, and overflows: the scaler"
            " is reset each time"
        )
    if _lowered(entries):
        return (
            f"the loss scale fell from {first.scale:g} to {last.after:g}, and the gradients"
            f" overflow in {count}"
        )
    used = f"{first.scale:g}" if first.scale else "in use"
    return f"the loss scale {used} overflows in {count}, and the scaler never lowers it"


def _fatal_fix(entries: Sequence[Skip]) -> Fix:
    if any(b.scale > a.after for a, b in pairwise(entries)):
        return Fix("make one scaler, before the loop", 'scaler = torch.amp.GradScaler("cuda")')
    if _lowered(entries):
        return _IN_FLOAT32
    return Fix(
        "let the scaler adapt",
        "scaler.update()  # without a fixed new_scale, after every scaler.step",
    )


_IN_FLOAT32 = Fix(
    "compute the overflowing operation in float32",
    "with torch.autocast(device_type, enabled=False): ...",
)


@rule(
    "error",
    family="training",
    events=("training.misuses", "training.scaled", "escapes.failure"),
    more_specific_than=("training", "loss-scale-overflow"),
    example="""
        net = nn.Linear(4, 2)
        opt = torch.optim.SGD(net.parameters(), lr=1e30)
        scaler = torch.amp.GradScaler("cpu", init_scale=2.0**16)
        for i in range(3):
            opt.zero_grad()
            scaler.scale(net(torch.ones(3, 4)).square().mean()).backward()
            opt.step()  # here
    """,
    fix={"lr=1e30": "lr=1e-2", "opt.step()": "scaler.step(opt)\n    scaler.update()"},
)
def scaler_misuse(fault: Fault) -> Finding | None:
    """Gradients were used with the loss scale still on them.

    The scale multiplies every gradient. Of a GradScaler only scaler.unscale_ and scaler.step divide
    it out again.
    """
    finding = fault.finding
    bypasses = [m for m in fault.recording.training.misuses if m.kind == "bypass"]
    for found in bypasses:
        if found.position < fault.origin.sink.step_position:
            same = [m for m in bypasses if m.at.line == found.at.line]
            told = _misuse_finding(fault.trace, found, len(same))
            return replace(told, symptom=finding.symptom, path=finding.path)
    if _never_updated(fault.trace):
        return replace(_no_update(fault.trace), symptom=finding.symptom)
    step = _ignored_check(fault)
    return _bypass_of_check(fault, step) if step is not None else _never_divided(fault)


def _never_divided(fault: Fault) -> Finding | None:
    """The finding of weights that diverged by a loss scale that was never divided out."""
    recording, away = fault.recording, drove_away(fault)
    loss = undivided_factor(recording, away) if away is not None else None
    # any other number may be the weight of a loss
    if away is None or loss is None or math.frexp(loss.factor)[0] != 0.5:
        return None
    file, line, _ = recording.line_at(loss.line)
    scale = f"{loss.factor:.10g}"
    return replace(
        blame_update(fault, away, scaler_misuse),
        title=(
            f"{f'{away.optimizer}.step()' if away.optimizer else away.op} uses gradients with the"
            f" loss scale {scale} still on them: {growth_of(away)}"
        ),
        explanation=(
            f"{scaler_misuse.explanation} Here the program multiplies the loss by {scale} itself"
            f" ({location(file, line)}), but does not divide the gradients by it: each update of"
            f" {away.name} is {scale} times too large."
        ),
        fixes=[
            Fix(
                "divide every gradient by the scale before the step",
                "for p in model.parameters():\n    if p.grad is not None:\n       "
                f" p.grad.div_({scale})\noptimizer.step()",
            ),
            Fix(
                "use a GradScaler",
                "scaler.scale(loss).backward(); scaler.step(optimizer); scaler.update()",
            ),
        ],
    )


def _ignored_check(fault: Fault) -> OptimizerStep | None:
    """The optimizer step with overflowed gradients that the scaler would have skipped."""
    recording, origin = fault.recording, fault.origin
    number = recording.step_of(origin.position)
    scaled = any(
        loss.scaled and recording.step_of(loss.position) == number
        for loss in recording.training.losses
    )
    if (
        fault.kind != "operation"
        or origin.position < 0
        or not scaled
        or not depends_on_scale(recording, origin)
    ):
        return None
    columns = parameter_columns(recording)
    spoilt = set(columns["position"][columns["used_nan"] + columns["used_inf"] > 0].tolist())
    took = (s for s in recording.training.optimizer_steps if s.end - 1 in spoilt)
    later = (s for s in took if s.position > origin.position)
    return next((s for s in later if recording.step_of(s.position) == number), None)


def _bypass_of_check(fault: Fault, step: OptimizerStep) -> Finding:
    return scaler_misuse.retold(
        fault.finding,
        f"{step.optimizer}.step() used overflowed gradients, which scaler.step would have skipped",
        f"scaler.step checks for NaN and infinity first, which too high a loss scale makes now and"
        f" then; {fault.finding.op} overflowed here"
        f" ({location(fault.finding.file, fault.finding.line)}).",
        phase="optimizer",
        op=step.writer,
        node=None,
        module="",
        position=step.position,
        **line_fields(fault.recording, step.line),
        fixes=[_STEP_WITH_SCALER],
    )


def _never_updated(trace: Trace) -> bool:
    """Whether the run ended for want of scaler.update()."""
    failure = trace.recording.escapes.failure
    told = ("already been called", "since the last update()")
    return failure is not None and all(words in failure.text for words in told)


def _no_update(trace: Trace) -> Finding:
    failure = trace.recording.escapes.failure
    assert failure is not None
    return scaler_misuse.finding(
        f"scaler.update() is missing: {failure.text.strip().rstrip('.')}",
        "scaler.update() must end each iteration: it forgets which"
        " optimizers have stepped, and adapts the scale.",
        phase="optimizer",
        step=trace.recording.step_of(trace.recording.end - 1),
        file=failure.file,
        line=failure.line,
        source=failure.source,
        symptom="exception",
        fixes=[
            Fix(
                "update once per iteration, after the last scaler.step",
                "scaler.step(optimizer)\nscaler.update()",
            )
        ],
    )


@rule(
    "error",
    family="training",
    events=("training.misuses", "escapes.failure"),
    example="""
        net = nn.Linear(4, 2)
        opt = torch.optim.SGD(net.parameters(), lr=0.1)
        scaler = torch.amp.GradScaler("cpu", init_scale=2.0**16)
        scaler.scale(net(torch.ones(3, 4)).square().mean()).backward()
        nn.utils.clip_grad_norm_(net.parameters(), 1.0)  # here
        scaler.step(opt)
        scaler.update()
    """,
    fix={"backward()": "backward()\nscaler.unscale_(opt)"},
)
def scaler_misuse_(trace: Trace) -> Iterator[Finding]:
    """Gradients were used with the loss scale still on them.

    The scale multiplies every gradient. Of a GradScaler only scaler.unscale_ and scaler.step divide
    it out again.
    """
    kinds: dict[tuple[str, int], list[Misuse]] = {}
    last = max((o.sink.step_position for o in harmful_origins(trace.recording)), default=-1)
    if _never_updated(trace) and last < 0:
        yield _no_update(trace)
    for found in trace.recording.training.misuses:
        if found.kind != "clip-spread":
            kinds.setdefault((found.kind, found.at.line), []).append(found)
    for (kind, _), group in kinds.items():
        if kind == "bypass" and group[0].position < last:
            continue  # told with the NaN that it made
        yield _misuse_finding(trace, group[0], len(group))


_STEP_WITH_SCALER = Fix("step with the scaler", "scaler.step(optimizer); scaler.update()")
_STILL_SCALED = (
    "{op} uses gradients with the loss scale {scale:g} still on them; the update is that much too"
    " large"
)
# title, explanation and fix of each misuse
_MISUSES = {
    "bypass": (
        _STILL_SCALED,
        "optimizer.step() does not divide by the loss scale.",
        _STEP_WITH_SCALER,
    ),
    "unscaled-early": (
        _STILL_SCALED,
        "scaler.unscale_ ran before the last backward pass of the step. Gradients added by that"
        " pass keep the scale, as scaler.step does not divide a second time.",
        Fix(
            "unscale once, after the last micro-batch",
            "if last_micro_batch:\n    scaler.unscale_(optimizer)  # then log or clip the norm",
        ),
    ),
    "part-unscaled": (
        "part of the loss is not scaled: the scaler makes its gradient {scale:g} times too small",
        "The scaler also divides terms by the scale that were added after scaler.scale, or that had"
        " a backward of their own.",
        Fix("scale the whole loss", "scaler.scale(loss + penalty).backward()"),
    ),
    "never-scaled": (
        "the loss is not scaled: the scaler makes its gradient {scale:g} times too small",
        "scaler.scale returns the scaled loss and leaves its argument as it is; scaler.step divides"
        " the gradients by the scale all the same.",
        Fix("go backward from the scaled loss", "scaler.scale(loss).backward()"),
    ),
    "unscaled-twice": (
        "the loss scale is divided out of the gradients twice: they become {ratio:.3g} times too"
        " small",
        "scaler.step (or scaler.unscale_) already divides the scale out.",
        Fix(
            "leave the division to the scaler",
            "scaler.unscale_(optimizer)  # once, instead of dividing by hand",
        ),
    ),
    "clip-before-unscale": (
        "gradients are clipped before they are unscaled: that makes them {ratio:.3g} times smaller",
        "The norm then includes the loss scale. After scaler.step has divided the scale out, almost"
        " nothing is left.",
        Fix(
            "unscale first",
            "scaler.unscale_(optimizer)\ntorch.nn.utils.clip_grad_norm_(model.parameters(),"
            " max_norm)\nscaler.step(optimizer)",
        ),
    ),
    "clip-before-division": (
        "gradients are clipped before their scale of {scale:g} is divided out: that makes"
        " them {ratio:.3g} times smaller",
        "The norm then includes the factor on the loss. After the division almost nothing is left.",
        Fix(
            "divide the scale out of the gradients first",
            "for p in model.parameters():\n    p.grad.div_(scale)\n"
            "torch.nn.utils.clip_grad_norm_(model.parameters(), max_norm)",
        ),
    ),
}


def _misuse_finding(trace: Trace, found: Misuse, count: int) -> Finding:
    recording, kind = trace.recording, str(found.kind)
    place, step = where(recording, found.at), recording.step_of(found.position)
    if kind != "part-unscaled" and place["phase"] in ("forward", "other"):
        place["phase"] = "optimizer"  # the work on gradients, with or without torch.no_grad
    if kind == "bypass":
        kind = "unscaled-early" if found.unscaled else kind
        later = (s for s in recording.sinks if s.step_position > found.position)
        step = next((recording.step_of(sink.step_position) for sink in later), step)
    elif kind == "clip-before-unscale" and _twice(recording, found):
        kind = "unscaled-twice"
    elif kind == "clip-before-unscale" and found.scale:  # that the program put on itself
        kind = "clip-before-division"
    title, explanation, fix = _MISUSES[kind]
    fix = _in_words_of(text_of(recording, str(place["file"])), kind, fix, place)
    return scaler_misuse.finding(
        title.format(op=place["op"], scale=found.scale, ratio=found.ratio),
        f"{explanation} Seen in {plural(count, 'step')}.",
        step=step,
        symptom="silent-scaler-misuse",
        fixes=[fix],
        **place,
    )


_ORDER = "a replay keeps the order of the scaler's calls"


def _in_words_of(text: str, kind: str, fix: Fix, place: Mapping[str, Any]) -> Fix:
    """The fix in the names of the program, as an edit of the line at which it helps."""
    try:
        tree = ast.parse(text)
    except SyntaxError:
        return fix
    body = [n for n in ast.walk(tree) if isinstance(n, ast.Call)]
    methods = [(n, n.func) for n in body if isinstance(n.func, ast.Attribute)]
    scalers = {ast.unparse(f.value) for _, f in methods if f.attr == "scale"}
    steps = {
        (ast.unparse(f.value), *map(ast.unparse, n.args)) for n, f in methods if f.attr == "step"
    }
    pairs = {step for step in steps if len(step) == 2 and step[0] in scalers}
    line, file = int(place["line"]), str(place["file"])
    old = "".join(text.splitlines()[line - 1 : line])
    try:
        plain = ast.unparse(ast.parse(old.strip()))  # without comments
    except SyntaxError:
        plain = old.strip()
    alone = [step[0] for step in steps if len(step) == 1 and f"{step[0]}.step()" == plain]
    scaler = next(iter(scalers)) if len(scalers) == 1 else ""
    optimizers = alone if kind == "bypass" else [optimizer for _, optimizer in pairs]
    clips = _statements(tree, line, "clip_grad")
    if kind == "clip-before-unscale" and scaler and len(clips) == 1:
        if later := [
            n for n, f in methods if (ast.unparse(f.value), f.attr) == (scaler, "unscale_")
        ]:
            return _moved(text, tree, clips[0], later, fix, file)
    if not scaler or len(optimizers) != 1:
        return fix
    optimizer = optimizers[0]
    if kind == "clip-before-unscale" and len(clips) == 1:
        line = clips[0].lineno
        old = text.splitlines()[line - 1]
        new = _preceded(old, clips[0], f"{scaler}.unscale_({optimizer})")
    elif kind == "bypass":
        updates = any((f.attr, ast.unparse(f.value)) == ("update", scaler) for _, f in methods)
        new = f"{scaler}.step({optimizer})" + ("" if updates else f"\n{scaler}.update()")
    elif kind == "never-scaled" and (called := re.fullmatch(r"(\w+)(\.backward\(.*)", plain)):
        new = f"{scaler}.scale({called[1]}){called[2]}"
    else:
        named = {"scaler": scaler, "optimizer": optimizer}
        code = re.sub(r"\b(scaler|optimizer)\b", lambda m: named[m[0]], fix.code)
        return replace(fix, code=code)
    return replace(fix, code=new, why=_ORDER, edits=(Edit(file, line, line, new, old),))


def _moved(
    text: str, tree: ast.Module, clip: ast.stmt, calls: list[ast.Call], fix: Fix, file: str
) -> Fix:
    """The fix that moves the program's own unscale_ before the clip: a second one would raise."""
    told = "; ".join(dict.fromkeys(map(ast.unparse, calls)))
    title = f"unscale first: move `{told}` (line {calls[0].lineno}) before the clipping"
    fix = replace(fix, title=title, code=f"{told}\n{ast.unparse(clip)}")
    bodies = (b for n in ast.walk(tree) for b in (getattr(n, "body", 0), getattr(n, "orelse", 0)))
    block = next((b for b in bodies if isinstance(b, list) and clip in b), [])
    after = [s for s in block[block.index(clip) + 1 :] if getattr(s, "value", None) in calls]
    if len(after) != len(calls) or any(s.lineno != s.end_lineno for s in after):
        return fix
    first, last = clip.lineno, after[-1].lineno
    rows = text.splitlines()[first - 1 : last]
    old = "\n".join(rows)
    for call in calls:
        at, named = call.lineno - first, re.escape(ast.get_source_segment(text, call) or "")
        rows[at] = re.sub(rf"{named}\s*;\s*|\s*;\s*{named}|{named}", "", rows[at], count=1)
    pairs = zip(rows, old.splitlines(), strict=True)
    kept = [row for row, was in pairs if row == was or row.partition("#")[0].strip()]
    new = "\n".join(
        [_preceded(rows[0], clip, told), *textwrap.dedent("\n".join(kept)).splitlines()[1:]]
    )
    return replace(fix, code=new, why=_ORDER, edits=(Edit(file, first, last, new, old),))


def _statements(tree: ast.Module, line: int, name: str) -> list[ast.stmt]:
    """The statements on a line that call a function with this in its name, and hold no others."""
    return [
        n
        for n in ast.walk(tree)
        if isinstance(n, ast.stmt)
        and n.lineno <= line <= (n.end_lineno or n.lineno)
        and not hasattr(n, "body")
        and name in ast.unparse(n)
    ]


def _preceded(row: str, statement: ast.stmt, other: str) -> str:
    """The first row of a statement with another one before it."""
    at = len(row.encode()[: statement.col_offset].decode())
    before, after = row[:at].lstrip(), row[at:].rstrip()
    return f"{before}{other}; {after}" if before else f"{other}\n{after}"


def _twice(recording: Recording, found: Misuse) -> bool:
    """Whether the program divided gradients by the loss scale before the scaler did."""
    scale = scale_of(recording, recording.step_of(found.position))
    return scale >= SCALED and abs(found.ratio / scale - 1.0) < 0.02
