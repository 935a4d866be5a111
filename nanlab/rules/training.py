"""Faults of the training loop that end in a NaN: the update, the learning rate, the optimizer's arithmetic."""

from __future__ import annotations

import math
from dataclasses import replace

from nanlab.analysis.provenance import Origin
from nanlab.analysis.training import Runaway, optimizer_step_at, place_text, rises_gradually, runaway
from nanlab.formats import format_of
from nanlab.history import OptimizerStep
from nanlab.rules._rule import Finding, Fix
from nanlab.trace import Trace
from nanlab.trace.recording import BACKWARD, DTYPE, FLAGS, LITERAL, NOGRAD, OP, OPTIMIZER, PHASE, Recording

_PRODUCTS = frozenset(
    "mm addmm bmm baddbmm mul mul_ convolution convolution_backward sum add add_ matmul linear dot mv".split()
)
_DIVIDES = frozenset(
    "addcdiv_ _foreach_addcdiv_ div div_ _foreach_div_ reciprocal reciprocal_ _foreach_reciprocal_".split()
)


def learning_rate(trace: Trace, origin: Origin, finding: Finding) -> Finding | None:
    """Updates drove the weights away, step by step, until a result overflowed.

    The operation that overflowed is only where it showed; the update is the cause. A smaller learning rate, or clipping
    the gradient's norm where gradients explode, cures it.
    """
    recording = trace.recording
    row = recording.row(origin.position) if origin.position >= 0 else None
    if row is None or origin.kind != "operation":
        return None
    if row[PHASE] == OPTIMIZER and optimizer_step_at(recording, origin.position) and _state_is_sane(recording, origin):
        return None
    if not _overflowed(recording, origin.position):
        return None
    away = runaway(recording, origin.position)
    return None if away is None else _blame_update(recording, finding, away)


def _state_is_sane(recording: Recording, origin: Origin) -> bool:
    """Whether the operands of an optimizer's operation are of ordinary size."""
    sizes = [
        abs(v)
        for p, _ in recording.operands(origin.position)
        if (s := recording.stats(p))
        for v in (s.min, s.max)
        if v is not None
    ]
    return max(sizes, default=0.0) < 1e15


def _overflowed(recording: Recording, position: int) -> bool:
    """Whether an operand was so large that the result, or what became of it, overflowed; not a matter of a domain."""
    sizes = []
    for parent, _ in recording.operands(position):
        stats = recording.stats(parent)
        if stats is not None and stats.min is not None:
            sizes.append(max(abs(stats.min), abs(stats.max)))
        if stats is not None and stats.posinf + stats.neginf:
            return True
    row = recording.row(position)
    limit = format_of(recording.dtypes.items[row[DTYPE]]).max if row is not None else math.inf
    return max(sizes, default=0.0) > limit**0.25


def _blame_update(recording: Recording, finding: Finding, away: Runaway) -> Finding:
    file, line, source = place_text(recording, away.place)
    decayed = away.rate is not None and away.rate * away.decay > 2.0
    cause = "exploding-gradient" if away.deep and not decayed else "learning-rate"
    grown = f"{away.name} grew from {away.before:.3g} to {away.after:.3g} (rms) in {away.steps} steps"
    rate = f"a learning rate of {away.rate:.3g}" if away.rate is not None else "these updates"
    if decayed:
        title = f"weight decay {away.decay:.3g} at learning rate {away.rate:.3g} multiplies the weights by {1 - away.rate * away.decay:.3g} each step"  # type: ignore[operator]
    elif cause == "exploding-gradient":
        title = f"exploding gradients drove the weights away: {grown}"
    else:
        title = f"{rate} drives the weights away: {grown}"
    return replace(
        finding,
        cause=cause,
        title=title,
        explanation=f"{grown}; then {finding.op} overflowed ({finding.file}:{finding.line}). The update is the cause, the overflow only where it showed.",
        phase="optimizer",
        op=away.op,
        node=None,
        module="",
        file=file,
        line=line,
        source=source,
        position=away.position,
        fixes=_update_fixes(away, decayed),
    )


def _update_fixes(away: Runaway, decayed: bool) -> list[Fix]:
    if decayed:
        return [Fix("a weight decay below 2 / learning rate", f"weight_decay={0.01:g}")]
    fixes = [Fix("clip the gradient's norm before the step", "torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)")]
    if away.rate:
        fixes.append(Fix("a smaller learning rate", f"lr={away.rate / 100:.1g}"))
    return fixes if away.deep else fixes[::-1]


def exploding_gradient(trace: Trace, origin: Origin, finding: Finding) -> Finding | None:
    """Each layer or time step multiplies the gradient, until it overflows although the loss is finite.

    The derivative of a chain is the product of its links'. Clipping cannot undo an infinity: the factor must come
    down (initialisation, normalisation, a shorter chain).
    """
    recording = trace.recording
    row = recording.row(origin.position) if origin.position >= 0 else None
    if row is None or row[PHASE] != BACKWARD or origin.kind != "operation":
        return None
    if recording.ops.items[row[OP]] not in _PRODUCTS or not rises_gradually(recording, origin.position):
        return None
    return replace(
        finding,
        cause="exploding-gradient",
        title=f"the gradient grew from operation to operation until {finding.op} overflowed in backward",
        explanation="The forward values are finite; each step of the chain multiplies the gradient by more than one, and the product leaves the range of the dtype.",
        fixes=[
            Fix("an initialisation of gain one", "nn.init.orthogonal_(cell.weight_hh)"),
            Fix("a shorter chain: truncated backpropagation", "h = h.detach()  # every k steps"),
        ],
    )


def optimizer_fault(trace: Trace, origin: Origin, finding: Finding) -> Finding | None:
    """An update rule divided by zero, took the root of a negative, or was given a learning rate that is no number."""
    recording = trace.recording
    row = recording.row(origin.position) if origin.position >= 0 else None
    if row is None or origin.kind not in ("operation", "intended", "data"):
        return None
    step = optimizer_step_at(recording, origin.position)
    by_hand = origin.sink.kind == "parameter" and bool(row[FLAGS] & NOGRAD)
    if row[PHASE] != OPTIMIZER and not by_hand:
        return None
    finding = replace(finding, phase="optimizer")
    if row[FLAGS] & LITERAL or (step is not None and any(r is None or not math.isfinite(r) for r in step.rates)):
        return _bad_rate(finding, step)
    op = recording.ops.items[row[OP]]
    if step is not None and op in _DIVIDES and (found := _eps_underflow(recording, origin, finding, step)) is not None:
        return found
    return replace(
        finding,
        cause="optimizer-arithmetic",
        title=f"{op} in the update rule{f' of {step.optimizer}' if step else ''} made a non-finite value from finite operands",
        explanation="Loss and gradients were finite; the update rule itself divided by zero, took the root of a negative number, or overflowed.",
        fixes=[Fix("keep the divisor away from zero inside the update rule", "denominator.clamp_min(1e-12)")],
    )


def _bad_rate(finding: Finding, step: OptimizerStep | None) -> Finding:
    rate = next((r for r in step.rates if r is None or not math.isfinite(r)), None) if step else None
    shown = "not a real number" if rate is None else f"{rate:g}"
    return replace(
        finding,
        cause="learning-rate",
        title=f"the learning rate is {shown}",
        explanation="The schedule (or the code that computes the rate) gave a value that is not a finite number, and the update spread it to every parameter. Loss and gradients were finite.",
        fixes=[
            Fix(
                "guard the schedule against a length of zero, a step of zero and steps past its end",
                "progress = min(step, total) / max(total, 1)",
            )
        ],
    )


def _eps_underflow(recording: Recording, origin: Origin, finding: Finding, step: OptimizerStep) -> Finding | None:
    eps = dict(step.settings).get("eps")
    row = recording.row(origin.position)
    if row is None or not eps:
        return None
    dtype = recording.dtypes.items[row[DTYPE]]
    limits = format_of(dtype)
    if eps > limits.rounds_to_zero:
        return None
    safe = 2.0 ** math.ceil(math.log2(limits.smallest_normal))
    return replace(
        finding,
        cause="optimizer-eps-underflow",
        title=f"eps={eps:g} of {step.optimizer} is zero in {limits.name}: the update divides by zero",
        explanation=f"{limits.name} has nothing between 0 and {limits.smallest_subnormal:.3g}, so eps={eps:g} is rounded to 0. Where the second moment is 0 as well, the update is 0/0 or x/0.",
        fixes=[
            Fix(
                "keep the parameters in float32 (mixed precision)",
                "model.float()  # and torch.autocast for the forward pass",
            ),
            Fix(f"an eps that {limits.name} can hold", f"{step.optimizer}(..., eps={safe * 2:.0e})"),
        ],
    )
