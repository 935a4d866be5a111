"""The loss scale: too large, out of use, or in the wrong order with clipping."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace

from nanlab.analysis.loss_scale import collapse, skips
from nanlab.analysis.provenance import Origin, depends_on_scale
from nanlab.analysis.training import where
from nanlab.history import Misuse
from nanlab.rules._rule import Finding, Fix
from nanlab.trace import Trace
from nanlab.trace.recording import BACKWARD, OP, PHASE, Recording

SCALED = 64.0  # a factor on the loss from which on it is taken for a loss scale


def scale_too_large(trace: Trace, origin: Origin, finding: Finding) -> Finding | None:
    """The loss was multiplied by a fixed scale, and the gradients overflow at that scale but not at a smaller one."""
    recording = trace.recording
    row = recording.row(origin.position) if origin.position >= 0 else None
    if row is None or origin.kind != "operation":
        return None
    factor = _factor(recording, origin.position)
    if factor >= SCALED and (depends_on_scale(recording, origin) or _is_root(recording, origin)):
        return _too_large(finding, factor)
    return _too_large(finding, 0.0) if _is_overflowing_scale(recording, origin) else None


def _too_large(finding: Finding, factor: float) -> Finding:
    scale = f"{factor:g}" if factor else "on the loss"
    return replace(
        finding,
        cause="loss-scale-overflow",
        title=f"the loss scale {scale} is too large: {finding.op} overflows",
        explanation="The same gradients at a smaller scale are finite. A dynamic scaler finds the scale by itself and skips the steps that overflow.",
        fixes=[Fix("a dynamic loss scale", "scaler.scale(loss).backward(); scaler.step(opt); scaler.update()")],
    )


def _factor(recording: Recording, position: int) -> float:
    """By how much the loss was multiplied whose backward pass a row belongs to (or leads to)."""
    losses = recording.training.losses
    before = next((loss for loss in reversed(losses) if loss.position <= position), None)
    after = next((loss for loss in losses if loss.position > position), None)
    row = recording.row(position)
    loss = before if row is not None and row[PHASE] == BACKWARD else after
    if loss is None:
        return 1.0
    if math.isfinite(loss.factor):
        return loss.factor
    return max((other.factor for other in losses if math.isfinite(other.factor)), default=1.0)


def _is_root(recording: Recording, origin: Origin) -> bool:
    """Whether the overflow is that of the scaled loss itself."""
    return any(loss.root == origin.position and loss.factor == math.inf for loss in recording.training.losses)


def _is_overflowing_scale(recording: Recording, origin: Origin) -> bool:
    """Whether the scale itself overflowed when it was cast to the dtype of the loss."""
    row, stats = recording.row(origin.position), recording.stats(origin.position)
    if row is None or stats is None or stats.numel != 1 or recording.ops.items[row[OP]] != "_to_copy":
        return False
    value = next((recording.value(p) for p, _ in recording.operands(origin.position)), None)
    joins = len(origin.path) > 1 and any(loss.root == origin.path[1] for loss in recording.training.losses)
    return bool(joins and value and value >= SCALED)


def bypassed_before(trace: Trace, origin: Origin, finding: Finding) -> Finding | None:
    """An optimizer stepped with gradients that still bore the loss scale, and the weights were thrown away."""
    for misuse in trace.recording.training.misuses:
        if misuse.kind == "bypass" and misuse.position < origin.sink.step_position:
            return replace(
                _misuse_finding(trace, misuse, 1), step=finding.step, symptom=finding.symptom, path=finding.path
            )
    return None


def misuse(trace: Trace) -> Iterator[Finding]:
    """Scaled gradients were used as they are: clipped before they were unscaled, or given to the optimizer."""
    kinds: dict[tuple[str, int], list[Misuse]] = {}
    for found in trace.recording.training.misuses:
        kinds.setdefault((found.kind, found.at.line), []).append(found)
    for group in kinds.values():
        yield _misuse_finding(trace, group[0], len(group))


def _misuse_finding(trace: Trace, found: Misuse, count: int) -> Finding:
    recording = trace.recording
    place = where(recording, found.at)
    step = recording.step_of(found.position)
    if found.kind == "bypass":
        title = f"{place['op']} uses gradients that still bear the loss scale {found.scale:g}; the update is that much too large"
        explanation = "scaler.scale(loss) multiplies every gradient; scaler.step(optimizer) divides it out again. optimizer.step() does not."
        fix = Fix("step through the scaler", "scaler.step(optimizer); scaler.update()")
        step = next(
            (recording.step_of(s.step_position) for s in recording.sinks if s.step_position > found.position), step
        )
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
        explanation=f"{explanation} Seen in {count} steps.",
        step=step,
        symptom="silent-scaler-misuse",
        fixes=[fix],
        harmful=True,
        **place,
    )


def scaler_ledger(trace: Trace) -> Iterator[Finding]:
    """Steps that a loss scaler skipped: a calibration is harmless, a scale that never fits is not."""
    entries = skips(trace)
    if not entries:
        return
    first = entries[0]
    fatal = collapse(trace, entries)
    place = {
        "op": "",
        "phase": "backward",
        "module": "",
        "node": None,
        "file": "",
        "line": 0,
        "source": "",
        "position": -1,
    }
    if first.place is not None:
        place = where(trace.recording, first.place)
    at = f", first by the gradient of {first.parameter}" if first.parameter else ""
    if fatal:
        yield Finding(
            cause="loss-scale-overflow",
            severity="error",
            title=f"the loss scale {first.scale:g} overflows in {len(entries)} steps, and no smaller one is tried",
            explanation=f"{fatal}{at}.",
            step=first.step,
            symptom="grad-nan",
            fixes=[
                Fix("let the scaler adapt", "scaler.update()  # without a fixed new_scale, after every scaler.step")
            ],
            harmful=True,
            **place,
        )
        return
    last = entries[-1]
    yield Finding(
        cause="loss-scale-overflow",
        severity="note",
        title=f"the loss scaler skipped {len(entries)} step{'s' if len(entries) > 1 else ''}: {first.scale:g} → {last.after:g}{at}",
        explanation="A dynamic scaler starts high and halves the scale until the gradients fit. The skipped steps changed no weight.",
        step=first.step,
        symptom="grad-inf",
        **place,
    )
