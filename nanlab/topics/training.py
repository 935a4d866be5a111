"""Training loops that diverge: the learning rate, exploding gradients, weight decay."""

from __future__ import annotations

import ast
import math
from dataclasses import replace

from nanlab.analysis.provenance import Origin
from nanlab.analysis.training import (
    Runaway,
    closure_adds_up,
    depends_on_gradient,
    enlarged_gradients,
    finite_at_rate,
    last_finite_rate,
    line_fields,
    optimizer_step_at,
    optimizer_step_behind,
    rises_gradually,
    rises_in_a_chain,
    runaway,
    stable_rate,
    undivided_factor,
    where,
)
from nanlab.findings.fault import Fault, plural
from nanlab.findings.rule import Finding, Fix, Rule, rule
from nanlab.formats import format_of
from nanlab.operators import having
from nanlab.topics.clipping import USUAL, clipping
from nanlab.trace.frames import parameter_columns
from nanlab.trace.history import OptimizerStep, Place
from nanlab.trace.op import OPTIMIZER, location
from nanlab.trace.recording import Recording

# Learning rates that are no rates: not finite, or negative.

# Their updates do not depend on the size of the gradients, which clipping changes.
SCALE_FREE = frozenset(
    "Adam AdamW NAdam RAdam Adamax Adagrad Adafactor RMSprop Rprop Adadelta".split()
)
CLEARED = Fix(
    "clear the gradients in each step: every backward pass added to those of earlier steps",
    "optimizer.zero_grad()",
)
THROWN_TO = 1e4  # rms of a parameter that updates before the recorded steps have thrown
USUAL_DECAY = 0.1  # the largest that recipes for training use
NOT_NEGATIVE = Fix(
    "keep the rate at 0 or above: a negative one climbs, and a schedule past its end gets there",
    'group["lr"] = max(rate, 0.0)',
)


_LAST_RATE = """\
if not math.isfinite(group["lr"]):
    group["lr"] = last  # the last rate that was a number"""


def _last_rate(fault: Fault) -> list[Fix]:
    """The last good rate, where the update is finite with it."""
    rate = last_finite_rate(fault.recording, fault.position)
    if rate is None or not finite_at_rate(fault.recording, fault.position, rate):
        return []
    title = f"keep the last rate, {rate:.3g}, where the schedule gives no finite number"
    return [Fix(title, _LAST_RATE)]


def _bad_rate(fault: Fault, step: OptimizerStep | None) -> Finding:
    rate = next((r for r in step.rates if not _finite(r)), None) if step else None
    if rate is not None:
        title, given = f"the learning rate is {rate:g}", "Here the schedule gave the bad rate"
    else:  # the row tells only that Python computed it
        title = "the learning rate, or another number of the update, is not a real number"
        given = "Here the bad number is one that Python computed"
    return learning_rate.retold(
        fault.finding,
        title,
        f"{given}, and the update spread it to every parameter; loss and gradients were finite.",
        phase="optimizer",
        fixes=[
            *_last_rate(fault),
            Fix(
                "guard the schedule against a length of 0, step 0 and steps past its end",
                "progress = min(step, total) / max(total, 1)",
            ),
        ],
    )


# Faults of the training loop that end in a NaN: the update, the learning rate, the optimizer's
# arithmetic.

_PRODUCTS = having("matmul", "dot", "composed_product", "links", in_place=True)

_SIGN_FIX = Fix(
    "check the sign and size of the term added: it does not depend on the gradients, so clipping"
    " does not help",
    "p.mul_(1 - lr * decay)  # decoupled weight decay makes weights smaller",
)


@rule(
    "error",
    family="training",
    more_specific_than=("exploding-gradient", "clip-nonfinite-norm"),
    example="""
        weight = nn.Linear(4, 1)
        opt = torch.optim.SGD(weight.parameters(), lr=0.1)
        x, y = 40 * torch.randn(8, 4), torch.randn(8, 1)
        for i in range(30):
            opt.zero_grad()
            F.mse_loss(weight(x), y).backward()
            opt.step()  # here
    """,
    fix={"lr=0.1": "lr=1e-4"},
)
def learning_rate(fault: Fault) -> Finding | None:
    """The updates made the weights diverge until a result overflowed, or the rate itself is not
    finite.

    The overflow is only the symptom; the update is the cause.
    """
    recording, origin = fault.recording, fault.origin
    if not fault.row:
        return None
    step = optimizer_step_at(recording, origin.position)
    written = fault.row.literal and fault.kind == "operation"
    bad = written if step is None else not all(map(_finite, step.rates))
    if bad and fault.in_update:
        return _bad_rate(fault, step)
    away = drove_away(fault)
    if away is None:
        return _thrown_before(fault) if fault.recording.first_step else None
    if _explodes(fault, away) or _enlarged(fault, away):
        return None
    return blame_update(fault, away, learning_rate)


def _thrown_before(fault: Fault) -> Finding | None:
    """The finding of weights that steps before those recorded had thrown."""
    recording = fault.recording
    if not overflowed(recording, fault.position) or fault.low:
        return None
    known = (s for s in recording.sources.values() if s.kind == "parameter")
    sizes = [(s.rms or 0.0, each.name) for each in known if (s := recording.stats(each.number))]
    size, name = max(sizes, default=(0.0, ""))
    if size <= THROWN_TO:
        return None
    return learning_rate.retold(
        fault.finding,
        f"updates of earlier steps threw the weights: {name} is {size:.3g} (rms) as step"
        f" {recording.first_step} begins",
        f"Then {fault.finding.op} overflowed.",
        fixes=[Fix("use a smaller learning rate, and warm it up", "lr=1e-3")],
    )


@rule(
    "error",
    family="training",
    example="""
        x, w = torch.ones(2, 4, requires_grad=True), nn.Parameter(5.0 * torch.eye(4))
        h = 1e-30 * x
        for t in range(60):
            h = h @ w  # here
        h.sum().backward()
    """,
    fix={"5.0 * torch.eye(4)": "torch.eye(4)"},
)
def exploding_gradient(fault: Fault) -> Finding | None:
    """Each layer or time step multiplies the gradient by more than one, until it overflows or makes
    the weights diverge.

    The derivative of a chain is the product of the derivatives of its links. Clipping the norm
    tames a large gradient but cannot undo an infinity: the factor itself must come down.
    """
    away = drove_away(fault)
    if away is not None and (enlarged := _enlarged(fault, away)):
        return _blame_enlarging(fault, away, *enlarged)
    if away is not None and _explodes(fault, away):
        return blame_update(fault, away, exploding_gradient)
    if not fault.backward or fault.kind != "operation" or fault.low:
        return None
    if fault.name not in _PRODUCTS or not rises_gradually(fault.recording, fault.position):
        return None
    return exploding_gradient.retold(
        fault.finding,
        f"the gradient grew from operation to operation until {fault.finding.op} overflowed in"
        " backward",
        fixes=_chain_fixes(fault),
    )


def _chain_fixes(fault: Fault) -> list[Fix]:
    """What bounds a chain of derivatives: of a recurrence, else of layers."""
    if not rises_in_a_chain(fault.recording, fault.position, of_one_module=True):
        title = "start each layer so that it keeps the size of what it reads"
        return [Fix(title, "nn.init.xavier_uniform_(layer.weight)")]
    state = _carried(fault.finding.source)
    return [
        Fix("initialise with gain 1", "nn.init.orthogonal_(cell.weight_hh)"),
        Fix(
            "shorten the chain: truncated backpropagation",
            f"{state} = {state}.detach()  # every k steps",
        ),
    ]


def _carried(source: str) -> str:
    """The name of what a line computes from what it was: ``x = rate * x * (1 - x)``."""
    try:
        match ast.parse(source.strip()).body:
            case [ast.Assign(targets=[target], value=value)]:
                read = {n.id for n in ast.walk(value) if isinstance(n, ast.Name)}
                named = (n.id for n in ast.walk(target) if isinstance(n, ast.Name))
                return next((name for name in named if name in read), "h")
    except SyntaxError:  # of several lines
        pass
    return "h"


def drove_away(fault: Fault) -> Runaway | None:
    """The update that drove the weights away before this overflow; None if none did."""
    if not fault.row or fault.kind != "operation":
        return None
    if (
        fault.row.phase == OPTIMIZER
        and optimizer_step_at(fault.recording, fault.position)
        and _state_is_sane(fault.recording, fault.origin)
    ):
        return None
    if overflowed(fault.recording, fault.position):
        return runaway(fault.recording, fault.position)
    return None


def _explodes(fault: Fault, away: Runaway) -> bool:
    return away.deep and not _decays(away) and not _uncleared(fault, away)


def _decays(away: Runaway) -> bool:
    """Whether weight decay multiplies the weights by less than -1 in each step."""
    return away.rate is not None and away.rate * away.decay > 2.0


def _finite(rate: float | None) -> bool:
    return rate is not None and math.isfinite(rate)


def _state_is_sane(recording: Recording, origin: Origin) -> bool:
    """Whether the operands of an optimizer's operation are of ordinary size."""
    read = [recording.stats(p) for p, _ in recording.operands(origin.position)]
    return max((s.largest for s in read if s is not None), default=0.0) < 1e15


def overflowed(recording: Recording, position: int) -> bool:
    """Whether an operand was so large that its result overflowed: no matter of a domain."""
    read = [recording.stats(p) for p, _ in recording.operands(position)]
    dtype = recording.at(position).dtype
    limit = format_of(dtype).max if dtype.is_floating_point else math.inf
    return any(s.posinf or s.neginf or s.largest > limit**0.25 for s in read if s is not None)


def blame_update(fault: Fault, away: Runaway, told_by: Rule) -> Finding:
    """The finding of the update that drove the weights away."""
    rated = away.rate is not None
    makes = f"a learning rate of {away.rate:.3g} makes" if rated else "these updates make"
    if _explodes(fault, away):
        makes = "exploding gradients make"
    title = f"{makes} the weights diverge: {growth_of(away)}"
    if away.rate is not None and _decays(away):
        factor = 1 - away.rate * away.decay
        title = (
            f"weight decay {away.decay:.3g} at learning rate {away.rate:.3g} multiplies the weights"
            f" by {factor:.3g} in each step"
        )
    return told_by.retold(
        fault.finding,
        title,
        _aftermath(fault, away),
        phase="optimizer",
        op=away.op,
        node=None,
        module="",
        position=away.position,
        **line_fields(fault.recording, away.place),
        fixes=_update_fixes(fault, away),
    )


def _aftermath(fault: Fault, away: Runaway) -> str:
    """What followed the bad updates, and what they did not do."""
    finding, loss = fault.finding, undivided_factor(fault.recording, away)
    told = (
        f"{growth_of(away)}; then {finding.op} overflowed ({location(finding.file, finding.line)})."
    )
    if loss is not None:
        file, line, _ = fault.recording.line_at(loss.line)
        told += (
            f" The loss is multiplied by {loss.factor:.6g} ({location(file, line)}), and so is each"
            " update: nothing divides the gradients by it."
        )
    if _uncleared(fault, away):
        told += " The gradients are never cleared: each step uses the sum of all steps so far."
    return told


def _enlarged(fault: Fault, away: Runaway) -> tuple[Place, float] | None:
    """What enlarged the gradients, and by how much, between backward and the bad update."""
    step = optimizer_step_behind(fault.recording, away)
    return enlarged_gradients(fault.recording, step) if step is not None else None


def _blame_enlarging(fault: Fault, away: Runaway, at: Place, factor: float) -> Finding:
    """The program's own change of the gradients, rather than the update that took them."""
    return replace(
        blame_update(fault, away, exploding_gradient),
        title=(
            f"the program's own {at.op} makes the gradients {factor:.3g} times larger before the"
            f" update: {growth_of(away)}"
        ),
        explanation=(
            "Clipping never enlarges a gradient: its factor is max_norm / norm, at most 1."
            f" {_aftermath(fault, away)}"
        ),
        fixes=[
            Fix("limit the factor to 1", "coefficient = (max_norm / (norm + 1e-6)).clamp(max=1.0)")
        ],
        **{**where(fault.recording, at), "phase": "optimizer"},
    )


def growth_of(away: Runaway) -> str:
    start = f" from {away.before:.3g}" if away.before is not None else ""
    return f"{away.name} grew{start} to {away.after:.3g} (rms) in {plural(away.steps, 'step')}"


def _uncleared(fault: Fault, away: Runaway) -> bool:
    """Whether the bad update took its own gradients and those of the step before."""
    step = optimizer_step_behind(fault.recording, away)
    return step is not None and (step.uncleared or closure_adds_up(fault.recording, step))


def _update_fixes(fault: Fault, away: Runaway) -> list[Fix]:
    if away.rate is not None and away.rate < 0.0:
        return [NOT_NEGATIVE]
    if _decays(away) and away.decay <= USUAL_DECAY:
        return []  # the rate is what is not usual
    if _decays(away) and away.rate is not None:
        decay = min(0.01, 0.1 / away.rate)
        return [Fix("use a weight decay below 2 / learning rate", f"weight_decay={decay:.1g}")]
    if _uncleared(fault, away):
        return [CLEARED]
    if not away.optimizer and not depends_on_gradient(
        fault.recording, away.place, away.op, fault.position
    ):
        return [_SIGN_FIX]
    fixes = [] if away.optimizer in SCALE_FREE and not away.deep else [_clip_fix(fault)]
    if away.deep and away.rate:  # others are tried on the steps before
        fixes.append(smaller_rate(fault.recording, away, away.rate))
    return fixes


def _clip_fix(fault: Fault) -> Fix:
    """Clipping, with a usual bound near the run's ordinary norms, where the trace has them."""
    if not parameter_columns(fault.recording)["gradient_known"].any():
        return Fix(
            "clip the gradient norm before the update",
            "g = g * (max_norm / (norm + 1e-6)).clamp(max=1.0)",
        )
    found = clipping(fault.trace)
    bound = min(max(found.advised_max_norm or USUAL[0], USUAL[0]), USUAL[-1])
    title = (
        f"clip the gradient norm before the step: a bound of {bound:g} clips"
        f" {found.would_clip(bound):.0%} of the recorded steps"
    )
    return Fix(title, f"torch.nn.utils.clip_grad_norm_(model.parameters(), {bound:.1f})")


def smaller_rate(recording: Recording, away: Runaway, rate: float) -> Fix:
    """A rate from the measured growth of updates; a hundredth where it is not steady."""
    stable = stable_rate(recording, away)
    if stable is None:
        return Fix("use a smaller learning rate", f"lr={rate / 100:.1g}")
    limit, growth = stable
    title = (
        f"use a learning rate below {limit:.2g}, where updates stop growing: each was {growth:.3g}"
        " times the one before"
    )
    return Fix(title, f"lr={limit / 2:.1g}")
