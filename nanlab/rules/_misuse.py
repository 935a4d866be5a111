"""A loss scaler that is bypassed, that is never updated, or whose gradients are used in the wrong order."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace

from nanlab.analysis.provenance import harmful_origins
from nanlab.analysis.skipped_overflows import depends_on_scale
from nanlab.analysis.skipped_steps import scale_of
from nanlab.analysis.training import place_text, where
from nanlab.analysis.updates import undivided_factor
from nanlab.history import SCALED, Misuse, OptimizerStep
from nanlab.rules._evidence import plural
from nanlab.rules._fault import Fault
from nanlab.rules._rule import Finding, Fix, rule
from nanlab.rules.training import blame_update, drove_away, growth_of
from nanlab.trace import Trace
from nanlab.trace.locations import location
from nanlab.trace.recording import Recording
from nanlab.trace.training_frames import parameter_columns


@rule(
    "error",
    family="training",
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
    fix="""
        net = nn.Linear(4, 2)
        opt = torch.optim.SGD(net.parameters(), lr=1e-2)
        scaler = torch.amp.GradScaler("cpu", init_scale=2.0**16)
        for i in range(3):
            opt.zero_grad()
            scaler.scale(net(torch.ones(3, 4)).square().mean()).backward()
            scaler.step(opt)
            scaler.update()
    """,
)
def scaler_misuse(fault: Fault) -> Finding | None:
    """Gradients that still bear the loss scale were used as they are.

    scaler.scale(loss) multiplies every gradient; scaler.unscale_ or scaler.step divides it out again, nothing else does.
    """
    finding = fault.finding
    for found in fault.recording.training.misuses:
        if found.kind == "bypass" and found.position < fault.origin.sink.step_position:
            same = [m for m in fault.recording.training.misuses if (m.kind, m.at.line) == (found.kind, found.at.line)]
            told = _misuse_finding(fault.trace, found, len(same))
            return replace(told, symptom=finding.symptom, path=finding.path)
    if _never_updated(fault.trace):
        return replace(_no_update(fault.trace), symptom=finding.symptom)
    step = _ignored_check(fault)
    return _bypass_of_check(fault, step) if step is not None else _never_divided(fault)


def _never_divided(fault: Fault) -> Finding | None:
    """Updates drove the weights away whose gradients bore a loss scale that the program put on by hand."""
    recording, away = fault.recording, drove_away(fault)
    loss = undivided_factor(recording, away) if away is not None else None
    if (
        away is None or loss is None or math.frexp(loss.factor)[0] != 0.5
    ):  # any other number may be the weight of a loss
        return None
    file, line, _ = place_text(recording, loss.line)
    scale = f"{loss.factor:.10g}"
    return replace(
        blame_update(fault, away, "scaler-misuse", ""),
        title=f"{f'{away.optimizer}.step()' if away.optimizer else away.op} uses gradients that still bear the loss scale {scale}: {growth_of(away)}",
        explanation=f"{scaler_misuse.explanation} Here the program multiplies the loss by {scale} itself ({location(file, line)}), and "
        f"must divide the gradients by it: those of {away.name} came to the update undivided, each update {scale} times too large.",
        fixes=[
            Fix(
                "divide the scale out before the step, of every parameter's gradient",
                f"for p in model.parameters():\n    if p.grad is not None:\n        p.grad.div_({scale})\noptimizer.step()",
            ),
            Fix("leave it to a scaler", "scaler.scale(loss).backward(); scaler.step(optimizer); scaler.update()"),
        ],
    )


def _ignored_check(fault: Fault) -> OptimizerStep | None:
    """The optimizer step that took gradients which overflowed at the loss scale, and which the scaler would have skipped."""
    recording, origin = fault.recording, fault.origin
    number = recording.step_of(origin.position)
    scaled = any(loss.scaled and recording.step_of(loss.position) == number for loss in recording.training.losses)
    if fault.kind != "operation" or origin.position < 0 or not scaled or not depends_on_scale(recording, origin):
        return None
    columns = parameter_columns(recording)
    spoilt = set(columns["position"][columns["used_nan"] + columns["used_inf"] > 0].tolist())
    for step in recording.training.optimizer_steps:
        if step.position > origin.position and recording.step_of(step.position) == number and step.end - 1 in spoilt:
            return step
    return None


def _bypass_of_check(fault: Fault, step: OptimizerStep) -> Finding:
    file, line, source = place_text(fault.recording, step.line)
    return replace(
        fault.finding,
        cause="scaler-misuse",
        title=f"{step.optimizer}.step() took gradients that had overflowed; scaler.step would have skipped them",
        explanation=f"{scaler_misuse.explanation} scaler.step also looks for NaN and infinity first, which a loss scale "
        f"that is still too high makes now and then; {fault.finding.op} overflowed here ({location(fault.finding.file, fault.finding.line)}).",
        phase="optimizer",
        op=step.writer,
        node=None,
        module="",
        file=file,
        line=line,
        source=source,
        position=step.position,
        fixes=[Fix("step through the scaler", "scaler.step(optimizer); scaler.update()")],
    )


def _never_updated(trace: Trace) -> bool:
    """Whether the run ended because scaler.update() was missing."""
    failure = trace.recording.escapes.failure
    return failure is not None and "already been called" in failure.text and "since the last update()" in failure.text


def _no_update(trace: Trace) -> Finding:
    failure = trace.recording.escapes.failure
    assert failure is not None
    return Finding(
        cause="scaler-misuse",
        severity="error",
        title=f"scaler.update() is missing: {failure.text.strip().rstrip('.')}",
        explanation=f"{scaler_misuse.explanation} scaler.update() ends each iteration: it forgets which optimizers have stepped, and adapts the scale.",
        phase="optimizer",
        op="",
        node=None,
        module="",
        step=trace.recording.step_of(trace.recording.end - 1),
        file=failure.file,
        line=failure.line,
        source=failure.source,
        symptom="exception",
        fixes=[Fix("update once an iteration, after the last scaler.step", "scaler.step(optimizer)\nscaler.update()")],
        harmful=True,
    )


@rule(
    "error",
    family="training",
    example="""
        net = nn.Linear(4, 2)
        opt = torch.optim.SGD(net.parameters(), lr=0.1)
        scaler = torch.amp.GradScaler("cpu", init_scale=2.0**16)
        scaler.scale(net(torch.ones(3, 4)).square().mean()).backward()
        nn.utils.clip_grad_norm_(net.parameters(), 1.0)  # here
        scaler.step(opt)
        scaler.update()
    """,
    fix="""
        net = nn.Linear(4, 2)
        opt = torch.optim.SGD(net.parameters(), lr=0.1)
        scaler = torch.amp.GradScaler("cpu", init_scale=2.0**16)
        scaler.scale(net(torch.ones(3, 4)).square().mean()).backward()
        scaler.unscale_(opt)
        nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        scaler.step(opt)
        scaler.update()
    """,
)
def scaler_misuse_(trace: Trace) -> Iterator[Finding]:
    """Gradients that still bear the loss scale were used as they are.

    scaler.scale(loss) multiplies every gradient; scaler.unscale_ or scaler.step divides it out again, nothing else does.
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
        title = f"{place['op']} uses gradients that still bear the loss scale {found.scale:g}; the update is that much too large"
        explanation, fix = _why_bypassed(found)
        step = next(
            (recording.step_of(s.step_position) for s in recording.sinks if s.step_position > found.position), step
        )
    elif found.kind == "part-unscaled":
        title = f"part of the loss is not scaled: the scaler makes its gradient {found.scale:g} times too small"
        explanation = (
            "What is added after scaler.scale, or goes backward by itself, is divided by the scale all the same."
        )
        fix = Fix("scale the whole loss", "scaler.scale(loss + penalty).backward()")
    elif _twice(recording, found):
        title = f"the loss scale is divided out of the gradients twice: they become {found.ratio:.3g} times too small"
        explanation = "scaler.step (or scaler.unscale_) divides the scale out itself."
        fix = Fix("leave it to the scaler", "scaler.unscale_(optimizer)  # once, instead of dividing by hand")
    else:
        title = f"gradients are clipped before they are unscaled: they become {found.ratio:.3g} times too small"
        explanation = "The norm is that of gradients times the loss scale. After scaler.step has divided the scale out, almost nothing is left."
        fix = Fix(
            "unscale first",
            "scaler.unscale_(optimizer)\ntorch.nn.utils.clip_grad_norm_(model.parameters(), max_norm)\nscaler.step(optimizer)",
        )
    return Finding(
        cause="scaler-misuse",
        severity="error",
        title=title,
        explanation=f"{scaler_misuse.explanation} {explanation} Seen in {plural(count, 'step')}.",
        step=step,
        symptom="silent-scaler-misuse",
        fixes=[fix],
        harmful=True,
        **place,
    )


def _why_bypassed(found: Misuse) -> tuple[str, Fix]:
    """How gradients came to an optimizer with the loss scale on them, and what to do."""
    if found.unscaled:
        return (
            "scaler.unscale_ ran before the last backward pass of the step: what that pass added still bears the scale, "
            "and scaler.step does not divide a second time.",
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
