"""The loss scaler: a scale too large, never found, bypassed, not updated, misordered."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

import torch

from nanlab.analysis.loss_scale import Skip, below_one, collapse, skips
from nanlab.analysis.provenance import Origin, depends_on_scale, harmful_origins
from nanlab.analysis.training import line_fields, scale_of, undivided_factor, where
from nanlab.capture.gradient_edits import UNSCALES
from nanlab.findings.fault import Fault, plural
from nanlab.findings.rule import Finding, Fix, rule
from nanlab.formats import format_of
from nanlab.topics.training import blame_update, drove_away, growth_of
from nanlab.trace import Trace
from nanlab.trace.frames import parameter_columns
from nanlab.trace.history import SCALED, Misuse, OptimizerStep
from nanlab.trace.op import OPTIMIZER, Op, location
from nanlab.trace.recording import Recording

_STEPS = "scaler.scale(loss).backward(), scaler.step(opt), scaler.update()"


def scaled_loss(recording: Recording) -> Fix:
    """A GradScaler for the device; it takes no gradients of half-precision parameters."""
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
    """Whether a parameter is in half precision, as first read or as updated."""
    if any(s.kind == "parameter" and "float16" in s.dtype for s in recording.sources.values()):
        return True
    return any(
        row.phase == OPTIMIZER and row.inplace and "float16" in str(row.dtype)
        for row in recording.all_ops()
    )


def loss_factor(recording: Recording, position: int) -> float:
    """The factor on the loss of a row's backward pass; 1 if there was none."""
    row, losses = recording.op(position), recording.training.losses
    before = [loss for loss in losses if loss.position <= position]
    after = losses[len(before) : len(before) + 1]
    backward = row is not None and row.backward
    chosen = (before[-1:] or after) if backward else (after or before[-1:])
    if not chosen:
        return 1.0
    if math.isfinite(chosen[0].factor):
        return chosen[0].factor
    return _written_factor(recording, chosen[0].root)


def _written_factor(recording: Recording, root: int) -> float:
    """The number that a product was made with which overflowed; inf where that cannot be told."""
    row = recording.op(root)
    numbers = recording.scalars.get(row.call, ()) if row is not None and row.name == "mul" else ()
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
    """Whether a scale is less than half the way to an overflow: gradients grew by more."""
    dtype = row.dtype
    if not isinstance(dtype, torch.dtype) or dtype == torch.float16:
        return False
    return 1.0 < factor < math.sqrt(format_of(dtype).max)


def _too_large(finding: Finding, factor: float) -> Finding:
    scale = f"{factor:g}" if factor else "on the loss"
    return loss_scale_overflow.retold(
        finding,
        f"the loss scale {scale} is too large: {finding.op} overflows",
        "A dynamic scaler finds the scale by itself and skips the steps that overflow.",
        fixes=[
            Fix(
                "a dynamic loss scale",
                "scaler.scale(loss).backward(); scaler.step(opt); scaler.update()",
            )
        ],
    )


def _is_reciprocal_of_zero_scale(recording: Recording, origin: Origin) -> bool:
    """Whether a scaler divided by its own scale, and that was zero."""
    row = recording.op(origin.position)
    if row is None or row.name != "reciprocal":
        return False
    after = [r for p in origin.path if p >= 0 and (r := recording.op(p)) is not None]
    zero = any(recording.value(source) == 0.0 for source, _ in recording.operands(origin.position))
    return zero and any(r.name == UNSCALES for r in after)


def _scale_is_zero(finding: Finding) -> Finding:
    return replace(
        finding,
        cause="loss-scale-overflow",
        title="the loss scale is 0: every gradient becomes 0, and unscaling makes it 0 times inf",
        explanation=(
            "A dynamic scaler halves its scale in each step that overflows, down to 0 if nothing"
            " helps; doubling 0 never raises it again. A scaler restored from the checkpoint of"
            " such a run starts with it."
        ),
        phase="optimizer",
        fixes=[
            Fix(
                "start the scaler afresh",
                "scaler = torch.amp.GradScaler(device)  # instead of load_state_dict",
            )
        ],
    )


def _factor(recording: Recording, position: int) -> float:
    """By how much the loss was multiplied whose backward pass a row belongs to (or leads to)."""
    factor = loss_factor(recording, position)
    if math.isfinite(factor):
        return factor
    losses = recording.training.losses
    return max((other.factor for other in losses if math.isfinite(other.factor)), default=1.0)


def _is_root(recording: Recording, origin: Origin) -> bool:
    """Whether the overflow is that of the scaled loss itself."""
    return any(
        loss.root == origin.position and loss.factor == math.inf
        for loss in recording.training.losses
    )


def _is_overflowing_scale(recording: Recording, origin: Origin) -> bool:
    """Whether the scale itself overflowed when it was cast to the dtype of the loss."""
    row, stats = recording.op(origin.position), recording.stats(origin.position)
    if row is None or stats is None or stats.numel != 1 or row.name != "_to_copy":
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
    first = entries[0]
    fatal = collapse(entries)
    place: dict[str, Any] = {"phase": "backward"}
    if first.place is not None:
        place = where(trace.recording, first.place)
    at = f", first by the gradient of {first.parameter}" if first.parameter else ""
    last = entries[-1]
    told = loss_scale_overflow_.finding
    if fatal:
        yield told(
            _fatal_title(entries),
            f"Here {fatal}{at}.",
            step=first.step,
            symptom="grad-nan",
            fixes=[_fatal_fix(entries)],
            **place,
        )
    elif low := below_one(entries):
        yield told(
            f"the loss scale came down to {last.after:g}: the gradients overflow without any"
            f" scaling{at}",
            f"Below 1 the scaler makes gradients smaller instead of larger; {low}.",
            "warning",
            step=first.step,
            symptom="grad-inf",
            fixes=[_in_float32()],
            **place,
        )
    else:
        fits = f", finite at 2^{round(math.log2(last.finite_at))}" if last.finite_at else ""
        yield told(
            f"the loss scaler skipped {plural(len(entries), 'step')}: {_shown(first.scale)} →"
            f" {_shown(last.after)}{fits}{at}",
            "A dynamic scaler starts high and halves the scale until the gradients fit. The"
            " skipped steps changed no weight.",
            "note",
            step=first.step,
            symptom="grad-inf",
            **place,
        )


def _shown(scale: float) -> str:
    """A loss scale as people write it."""
    power = math.log2(scale) if scale > 0 else 0.5
    return f"2^{power:.0f}" if scale >= 2.0**20 and power == round(power) else f"{scale:g}"


def _lowered(entries: Sequence[Skip]) -> bool:
    """Whether the scaler came down, as a dynamic one does."""
    return any(0.0 < e.after < e.scale for e in entries)


def _fatal_title(entries: Sequence[Skip]) -> str:
    first, last = entries[0], entries[-1]
    count = plural(len(entries), "step")
    if all(b.scale > a.after for a, b in pairwise(entries)) and len(entries) > 1:
        return (
            f"the loss scale is {first.scale:g} again in each of {count}, and overflows; what the"
            " scaler learns is lost"
        )
    if _lowered(entries):
        return (
            f"the loss scaler came down from {first.scale:g} to {last.after:g}, and the gradients"
            f" overflow in {count}"
        )
    used = f"{first.scale:g}" if first.scale else "in use"
    return f"the loss scale {used} overflows in {count}, and no smaller one is tried"


def _fatal_fix(entries: Sequence[Skip]) -> Fix:
    if any(b.scale > a.after for a, b in pairwise(entries)):
        return Fix("make one scaler, before the loop", 'scaler = torch.amp.GradScaler("cuda")')
    if _lowered(entries):
        return _in_float32()
    return Fix(
        "let the scaler adapt",
        "scaler.update()  # without a fixed new_scale, after every scaler.step",
    )


def _in_float32() -> Fix:
    return Fix(
        "compute what overflows in float32", "with torch.autocast(device_type, enabled=False): ..."
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
    """Gradients that still bear the loss scale were used as they are.

    scaler.scale(loss) multiplies every gradient; scaler.unscale_ or scaler.step divides it out
    again, nothing else does.
    """
    finding = fault.finding
    for found in fault.recording.training.misuses:
        if found.kind == "bypass" and found.position < fault.origin.sink.step_position:
            same = [
                m
                for m in fault.recording.training.misuses
                if (m.kind, m.at.line) == (found.kind, found.at.line)
            ]
            told = _misuse_finding(fault.trace, found, len(same))
            return replace(told, symptom=finding.symptom, path=finding.path)
    if _never_updated(fault.trace):
        return replace(_no_update(fault.trace), symptom=finding.symptom)
    step = _ignored_check(fault)
    return _bypass_of_check(fault, step) if step is not None else _never_divided(fault)


def _never_divided(fault: Fault) -> Finding | None:
    """Updates drove the weights away by gradients that bore a loss scale put on by hand."""
    recording, away = fault.recording, drove_away(fault)
    loss = undivided_factor(recording, away) if away is not None else None
    # any other number may be the weight of a loss
    if away is None or loss is None or math.frexp(loss.factor)[0] != 0.5:
        return None
    file, line, _ = recording.line_at(loss.line)
    scale = f"{loss.factor:.10g}"
    return replace(
        blame_update(fault, away, "scaler-misuse", ""),
        title=(
            f"{f'{away.optimizer}.step()' if away.optimizer else away.op} uses gradients that still"
            f" bear the loss scale {scale}: {growth_of(away)}"
        ),
        explanation=(
            f"{scaler_misuse.explanation} Here the program multiplies the loss by {scale} itself"
            f" ({location(file, line)}), and must divide the gradients by it: those of {away.name}"
            f" came to the update undivided, each update {scale} times too large."
        ),
        fixes=[
            Fix(
                "divide the scale out before the step, of every parameter's gradient",
                "for p in model.parameters():\n    if p.grad is not None:\n       "
                f" p.grad.div_({scale})\noptimizer.step()",
            ),
            Fix(
                "leave it to a scaler",
                "scaler.scale(loss).backward(); scaler.step(optimizer); scaler.update()",
            ),
        ],
    )


def _ignored_check(fault: Fault) -> OptimizerStep | None:
    """The optimizer step that took overflowed gradients which the scaler would have skipped."""
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
    for step in recording.training.optimizer_steps:
        if (
            step.position > origin.position
            and recording.step_of(step.position) == number
            and step.end - 1 in spoilt
        ):
            return step
    return None


def _bypass_of_check(fault: Fault, step: OptimizerStep) -> Finding:
    return scaler_misuse.retold(
        fault.finding,
        f"{step.optimizer}.step() took gradients that had overflowed; scaler.step would have"
        " skipped them",
        f"scaler.step also looks for NaN and infinity first, which"
        f" a loss scale that is still too high makes now and then; {fault.finding.op}"
        f" overflowed here ({location(fault.finding.file, fault.finding.line)}).",
        phase="optimizer",
        op=step.writer,
        node=None,
        module="",
        position=step.position,
        **line_fields(fault.recording, step.line),
        fixes=[Fix("step through the scaler", "scaler.step(optimizer); scaler.update()")],
    )


def _never_updated(trace: Trace) -> bool:
    """Whether the run ended because scaler.update() was missing."""
    failure = trace.recording.escapes.failure
    return (
        failure is not None
        and "already been called" in failure.text
        and "since the last update()" in failure.text
    )


def _no_update(trace: Trace) -> Finding:
    failure = trace.recording.escapes.failure
    assert failure is not None
    return scaler_misuse.finding(
        f"scaler.update() is missing: {failure.text.strip().rstrip('.')}",
        "scaler.update() ends each iteration: it forgets which"
        " optimizers have stepped, and adapts the scale.",
        phase="optimizer",
        step=trace.recording.step_of(trace.recording.end - 1),
        file=failure.file,
        line=failure.line,
        source=failure.source,
        symptom="exception",
        fixes=[
            Fix(
                "update once an iteration, after the last scaler.step",
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
    """Gradients that still bear the loss scale were used as they are.

    scaler.scale(loss) multiplies every gradient; scaler.unscale_ or scaler.step divides it out
    again, nothing else does.
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


def _misuse_finding(trace: Trace, found: Misuse, count: int) -> Finding:
    recording = trace.recording
    place = where(recording, found.at)
    if found.kind != "part-unscaled" and place["phase"] in ("forward", "other"):
        place["phase"] = "optimizer"  # what is done to gradients, with or without torch.no_grad
    step = recording.step_of(found.position)
    if found.kind == "bypass":
        title = (
            f"{place['op']} uses gradients that still bear the loss scale {found.scale:g}; the"
            " update is that much too large"
        )
        explanation, fix = _why_bypassed(found)
        step = next(
            (
                recording.step_of(s.step_position)
                for s in recording.sinks
                if s.step_position > found.position
            ),
            step,
        )
    elif found.kind == "part-unscaled":
        title = (
            f"part of the loss is not scaled: the scaler makes its gradient {found.scale:g} times"
            " too small"
        )
        explanation = (
            "What is added after scaler.scale, or goes backward by itself, is divided by the scale"
            " all the same."
        )
        fix = Fix("scale the whole loss", "scaler.scale(loss + penalty).backward()")
    elif _twice(recording, found):
        title = (
            f"the loss scale is divided out of the gradients twice: they become {found.ratio:.3g}"
            " times too small"
        )
        explanation = "scaler.step (or scaler.unscale_) divides the scale out itself."
        fix = Fix(
            "leave it to the scaler",
            "scaler.unscale_(optimizer)  # once, instead of dividing by hand",
        )
    else:
        title = (
            f"gradients are clipped before they are unscaled: they become {found.ratio:.3g} times"
            " too small"
        )
        explanation = (
            "The norm is that of gradients times the loss scale. After scaler.step has divided the"
            " scale out, almost nothing is left."
        )
        fix = Fix(
            "unscale first",
            "scaler.unscale_(optimizer)\ntorch.nn.utils.clip_grad_norm_(model.parameters(),"
            " max_norm)\nscaler.step(optimizer)",
        )
    return scaler_misuse.finding(
        title,
        f"{explanation} Seen in {plural(count, 'step')}.",
        step=step,
        symptom="silent-scaler-misuse",
        fixes=[fix],
        **place,
    )


def _why_bypassed(found: Misuse) -> tuple[str, Fix]:
    """How gradients came to an optimizer with the loss scale on them, and what to do."""
    if found.unscaled:
        return (
            (
                "scaler.unscale_ ran before the last backward pass of the step: what that pass"
                " added still bears the scale, and scaler.step does not divide a second time."
            ),
            Fix(
                "unscale once, after the last micro-batch",
                "if last_micro_batch:\n    scaler.unscale_(optimizer)  # then log or clip the norm",
            ),
        )
    return (
        "optimizer.step() knows nothing of the scaler.",
        Fix("step through the scaler", "scaler.step(optimizer); scaler.update()"),
    )


def _twice(recording: Recording, found: Misuse) -> bool:
    """Whether gradients were divided by the loss scale before the scaler did so."""
    scale = scale_of(recording, recording.step_of(found.position))
    return scale >= SCALED and abs(found.ratio / scale - 1.0) < 0.02
