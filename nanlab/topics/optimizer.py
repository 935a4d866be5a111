"""Updates that divide by zero, diverge within a step, or are rounded away."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace

import torch

from nanlab.analysis.provenance import Origin
from nanlab.analysis.training import (
    comes_from_gradients,
    inner_updates,
    line_fields,
    optimizer_step_at,
)
from nanlab.findings.fault import Fault, floating, nonfinite, place_of, plural, table
from nanlab.findings.rule import Finding, Fix, rule
from nanlab.formats import format_of
from nanlab.operators import card, having
from nanlab.stats import TensorStats
from nanlab.topics.training import overflowed
from nanlab.trace import Trace
from nanlab.trace.history import OptimizerStep
from nanlab.trace.op import FORWARD, OPTIMIZER, location
from nanlab.trace.recording import PHASES, Recording

# their decay multiplies the weights in an operation of its own
DECOUPLED = frozenset(("AdamW", "NAdamW", "RAdamW"))
_OF_SAMPLES = having("deviation") | {"mean"}
_DIVIDES = having("quotient", in_place=True, lists=True)
FEWEST_STEPS = 5
FAR_BELOW = 1000.0  # eps over the largest gradient
STANDS_STILL = 1e-5  # an update over the parameter: 100,000 steps change it by its own size
_WIDE = "model.float()  # and torch.autocast for the forward pass"


@rule(
    "error",
    family="context",
    more_specific_than=("custom-backward", "dtype-overflow"),
    origins=("operation", "intended", "data"),
    phase="update",
    example="""
        w = torch.ones(3, requires_grad=True)
        opt = torch.optim.Adagrad([w], lr=0.1, eps=0.0)
        (w * torch.tensor([0.0, 1.0, 2.0])).sum().backward()
        opt.step()  # here
    """,
    fix={"torch.optim.Adagrad([w], lr=0.1, eps=0.0)": "torch.optim.Adagrad([w], lr=0.1)"},
)
def optimizer_arithmetic(fault: Fault) -> Finding | None:
    """Loss and gradients were finite; the update rule itself divided by zero, took the root of a
    negative number, or overflowed.

    Typical causes: a bias correction that counts from zero, a trust ratio of a zero norm, a
    variance rounded below zero.
    """
    step = optimizer_step_at(fault.recording, fault.position)
    if step is None and not _of_update_rule(fault):
        return None
    operands = _named_operands(fault)
    return optimizer_arithmetic.retold(
        fault.finding,
        f"{fault.name} in the update rule{f' of {step.optimizer}' if step else ''} "
        + (_by_zero(fault, operands) or "made a non-finite value from finite operands"),
        phase="optimizer",
        evidence=table(fault, operands),
    )


def _role(name: str, i: int) -> str:
    """What an operand of a division is to it; "" for what is only added to."""
    slot = card(name).divisor
    if slot is None or i > slot:
        return f"operand {i + 1}"
    return "divisor" if i == slot else "dividend" if i == slot - 1 else ""


def _named_operands(fault: Fault) -> dict[str, torch.Tensor]:
    """The tensors of an update by what they are to it; of a list's call, the failed one's."""
    if fault.kept is None:
        return {}
    place, found = fault.position - fault.row.call, {}
    for i, value in enumerate(fault.kept.args):
        if isinstance(value, (list, tuple)):
            value = value[place] if place < len(value) else None
        name = _role(fault.name, i)
        if (
            isinstance(value, torch.Tensor)
            and name
            and not (floating(value) and nonfinite(value).any())
        ):  # it was overwritten by the result
            found[name] = value
    return found


def _by_zero(fault: Fault, operands: dict[str, torch.Tensor]) -> str:
    """That an update divided by zero, if so at all of its bad elements; else ""."""
    divisor = operands.get("divisor")
    wide = fault.spread(divisor) if divisor is not None else None
    if wide is None or fault.bad is None or not fault.count or bool((wide[fault.bad] != 0).any()):
        return ""
    return f"divided by zero at {fault.elements}"


def _of_update_rule(fault: Fault) -> bool:
    """Whether an operation outside of an optimizer belongs to an update by gradients.

    Weights are written for other reasons, too: to keep them on a sphere, to follow averages of
    codes. And a deviation of a single number, or an overflow of half precision, says more than that
    an update needed it.
    """
    other = fault.name in _OF_SAMPLES or fault.low or fault.name == "_to_copy"
    return not other and comes_from_gradients(fault.recording, fault.position)


@rule(
    "error",
    family="training",
    events=("training.optimizer_steps",),
    phase="update",
    example="""
        w = torch.ones(3, dtype=torch.float16, requires_grad=True)
        opt = torch.optim.Adam([w], lr=0.1)
        (w * torch.tensor([0.0, 1.0, 2.0]).half()).sum().backward()
        opt.step()  # here
    """,
    fix={"lr=0.1": "lr=0.1, eps=1e-4"},
)
def optimizer_eps_underflow(fault: Fault) -> Finding | None:
    """The optimizer's eps is rounded to zero in the dtype of the parameters, and the update divides
    by zero."""
    step = optimizer_step_at(fault.recording, fault.position)
    if step is None or fault.row.name not in _DIVIDES:
        return None
    found = _eps_underflow(fault.recording, fault.origin, fault.finding, step)
    return (
        replace(found, evidence=table(fault, _named_operands(fault))) if found is not None else None
    )


def _eps_underflow(
    recording: Recording, origin: Origin, finding: Finding, step: OptimizerStep
) -> Finding | None:
    eps = dict(step.settings).get("eps")
    row = recording.op(origin.position)
    if row is None or not eps:
        return None
    read = [
        made for p in recording.parents(origin.position) if (made := recording.op(p)) is not None
    ]
    dtypes = [r.dtype for r in (row, *read)]  # moments may be narrower than the parameters
    limits = max(
        (format_of(d) for d in dtypes if d in (torch.float16, dtypes[0])),
        key=lambda f: f.rounds_to_zero,
    )
    if eps > limits.rounds_to_zero:
        return None
    return optimizer_eps_underflow.retold(
        finding,
        f"eps={eps:g} of {step.optimizer} is zero in {limits.name}: the update divides by zero",
        f"{limits.name} has no number between 0 and"
        f" {limits.smallest_subnormal:.3g}, so eps={eps:g} is rounded to 0. Where the second"
        " moment is 0 too, the update is 0/0 or x/0.",
        fixes=[
            Fix(
                "keep the parameters and the optimizer's state in float32 (mixed precision)",
                "model.float()  # and torch.autocast for the forward pass; it concerns the whole"
                " model",
            )
        ],
    )


@rule(
    "error",
    family="training",
    events=("training.optimizer_steps",),
    example="""
        w = nn.Parameter(torch.ones(4))
        opt = torch.optim.Adam([w], lr=1e-3)
        for i in range(5):
            opt.zero_grad()
            (1e-6 * w - 2e-6).square().sum().backward()
            opt.step()  # here
    """,
    fix={"lr=1e-3": "lr=1e-3, eps=1e-20"},
)
def optimizer_eps_underflow_(trace: Trace) -> Iterator[Finding]:
    """All gradients are far below the optimizer's eps, which is added to what it divides them by:
    the updates are so much smaller than the learning rate that nothing moves."""
    steps = trace.recording.training.optimizer_steps
    every = {dict(step.settings).get("eps") for step in steps}
    eps = every.pop() if len(every) == 1 else None
    if not isinstance(eps, float) or not steps[0].begins or len(steps) < FEWEST_STEPS:
        return
    rows = trace.parameters.dropna(subset=["gradient_absmax", "update_rms", "value_rms", "lr"])
    if rows.empty or not (rows["lr"] > 0.0).any():  # updates of large parameters are not measured
        return
    largest = rows["gradient_absmax"].max()
    if not 0.0 < largest < eps / FAR_BELOW or not (rows["update_ratio"] < STANDS_STILL).all():
        return
    moved = rows[rows["update_rms"] > 0.0]  # the others were rounded away
    over_eps = moved["update_rms"] / (moved["lr"] * moved["gradient_rms"] / eps)
    if not moved.empty and not 0.5 < over_eps.median() < 2.0:
        return
    first = steps[0]
    yield optimizer_eps_underflow_.finding(
        f"all gradients are at most {largest:.3g}, and {first.optimizer} divides them by no less"
        f" than eps={eps:g}: the updates are {eps / largest:.3g} times smaller than the learning"
        " rate",
        f"{first.optimizer} divides a gradient by its root mean square, so that an update is about"
        " as large as the learning rate, and adds eps, here far larger, to the divisor.",
        step=trace.recording.step_of(first.position),
        symptom="silent-underflow",
        phase=PHASES[OPTIMIZER],
        op=first.writer,
        fixes=[
            Fix(
                "scale the loss, or measure in units in which values are about 1",
                f"loss * 1e{max(6, -math.floor(math.log10(largest)) - 1)}",
            )
        ],
        **line_fields(trace.recording, first.line),
    )


def smaller_eps(trace: Trace) -> float | None:
    """An eps that is small next to the gradients of a run that eps keeps still; None where the
    squares of these are zero in float32, so that eps alone is what they are divided by."""
    largest = float(trace.parameters["gradient_absmax"].max())
    if largest**2 < 1e6 * torch.finfo(torch.float32).tiny:
        return None
    return float(10.0 ** (math.floor(math.log10(largest)) - 5))


@rule(
    "note",
    family="context",
    events=("training.optimizer_steps",),
    example="""
        net = nn.Linear(8, 4).bfloat16()
        opt = torch.optim.AdamW(net.parameters(), lr=1e-2, weight_decay=0.01)
        for i in range(2):
            opt.zero_grad()
            net(torch.ones(3, 8).bfloat16()).float().square().mean().backward()
            opt.step()  # here
    """,
    fix="""
        net = nn.Linear(8, 4)
        opt = torch.optim.AdamW(net.parameters(), lr=1e-2, weight_decay=0.01)
        for i in range(2):
            opt.zero_grad()
            with torch.autocast("cpu", dtype=torch.bfloat16):
                out = net(torch.ones(3, 8))
            out.float().square().mean().backward()
            opt.step()
    """,
)
def absorbed_update_(trace: Trace) -> Iterator[Finding]:
    """Decoupled weight decay multiplies a weight by 1 - lr * decay. Within a quarter ulp of 1, the
    product rounds back to the weight.

    The rest of the update may still change it: the run trains, but without weight decay.
    """
    recording = trace.recording
    told: set[int] = set()
    for step in recording.training.optimizer_steps:
        settings = dict(step.settings)
        if step.number in told or step.optimizer not in DECOUPLED or settings.get("fused"):
            continue
        told.add(step.number)
        decay = float(settings.get("weight_decay") or 0.0)
        rate = _highest_rate(recording, step.number)
        narrow = [
            d for d in _decayed_dtypes(recording, step) if 0.0 < rate * decay < format_of(d).ulp / 4
        ]
        if narrow:
            yield _idle_decay(recording, step, decay, rate, format_of(narrow[0]).name)


@rule(
    "error",
    family="training",
    origins=("operation",),
    example="""
        start, rate = torch.randn(4, 4), nn.Parameter(torch.tensor(30.0))
        x = torch.randn(8, 4)
        w = start.requires_grad_()
        for k in range(60):
            loss = (x @ w - x).square().mean()
            (grad,) = torch.autograd.grad(loss, w, create_graph=True)
            w = w - rate * grad  # here
        (x @ w).square().mean().backward()
    """,
    fix={"torch.tensor(30.0)": "torch.tensor(0.1)"},
)
def learning_rate_(fault: Fault) -> Finding | None:
    """Updates within a training step, as in meta-learning, overshoot: each makes the weights
    larger, until a result overflows.

    A wider dtype does not help: lower the inner rate, or clip the inner gradients.
    """
    if not fault.row or fault.low or not overflowed(fault.recording, fault.position):
        return None
    inner = inner_updates(fault.recording, fault.position)
    if inner is None:
        return None
    finding, place = fault.finding, place_of(fault.trace, inner.position)
    grown = (
        f"their largest value grew from {inner.first:.3g} to {inner.last:.3g} in"
        f" {plural(inner.count, 'update')}"
    )
    return learning_rate_.retold(
        finding,
        f"the updates by {place['op']} within the step make the weights diverge: {grown}",
        f"Here {grown}; then {finding.op} overflowed ({location(finding.file, finding.line)}).",
        phase=PHASES[FORWARD],
        fixes=[
            Fix(
                "use a smaller inner rate; bound a learned one from above",
                "rate = max_rate * torch.sigmoid(raw_rate)",
            ),
            Fix(
                "clip the inner gradients", "g = g * (max_norm / (g.norm() + 1e-6)).clamp(max=1.0)"
            ),
        ],
        **place,
    )


def _highest_rate(recording: Recording, number: int) -> float:
    """The largest learning rate that an optimizer had; inf where one is no number."""
    rates = (r for s in recording.training.optimizer_steps if s.number == number for r in s.rates)
    return max((math.inf if r is None or r != r else r for r in rates), default=0.0)


def _decayed_dtypes(recording: Recording, step: OptimizerStep) -> list[torch.dtype]:
    """Half-precision dtypes in which an optimizer multiplied parameters: weight decay."""
    series, line = recording.training.series, recording.places[step.line][:2]
    written = [series.places[c] for c in series.owners if c >= 0]
    decays = [p for p in written if p.op in ("mul_", "_foreach_mul_") and p.phase == OPTIMIZER]
    names = {p.dtype for p in decays if recording.places[p.line][:2] == line}
    return [d for d in (torch.bfloat16, torch.float16) if str(d).removeprefix("torch.") in names]


def _idle_decay(
    recording: Recording, step: OptimizerStep, decay: float, rate: float, dtype: str
) -> Finding:
    return absorbed_update_.finding(
        f"weight decay {decay:g} at a learning rate of at most {rate:g} has no effect on {dtype}"
        " weights",
        f"Here the factor is 1 - {rate * decay:.2g}.",
        phase="optimizer",
        op="mul_",
        step=recording.step_of(step.position),
        **line_fields(recording, step.line),
        symptom="silent-underflow",
        fixes=[Fix("keep the weights in float32, under autocast", _WIDE)],
    )


# Momentum and second moments that leave the range of the half precision they are kept in.

_SUMS = having("updates") - {"addcdiv", "sub"} | {"mul"}


@rule(
    "error",
    family="training",
    events=("training.optimizer_steps",),
    example="""
        w = torch.zeros(3, dtype=torch.float16, requires_grad=True)
        opt = torch.optim.SGD([w], lr=1e-7, momentum=0.9)
        for i in range(3):
            opt.zero_grad()
            (w * 30000.0).sum().backward()
            opt.step()  # here
    """,
    fix={"3, dtype=torch.float16": "3"},
)
def dtype_overflow(fault: Fault) -> Finding | None:
    """A moment in half precision overflowed: momentum m adds up to 1 / (1 - m) gradients, a second
    moment their squares.

    Every operand was finite, and so is their sum in float32.
    """
    step = optimizer_step_at(fault.recording, fault.position)
    if step is None or not fault.low or fault.name not in _SUMS or _of_parameter(fault):
        return None
    went_in = _finite_operands(fault.recording, fault.position)
    if not went_in:
        return None
    limits = format_of(fault.dtype)
    shown = " and ".join(f"{stats.largest:.4g}" for stats in went_in)
    return dtype_overflow.retold(
        fault.finding,
        f"{fault.name} in the update rule of {step.optimizer} overflows {limits.name}, which ends"
        f" at {limits.max:.6g}: its operands reach {shown}",
        phase="optimizer",
        fixes=[
            Fix("keep parameters and moments in float32", _WIDE),
            Fix(
                "make the gradients smaller: use a mean as the loss, or clip them",
                "torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)",
            ),
        ],
    )


def _of_parameter(fault: Fault) -> bool:
    """Whether it is a parameter that was written, rather than the optimizer's state."""
    return any(
        s.kind == "parameter" and s.position == fault.position for s in fault.recording.sinks
    )


def _finite_operands(recording: Recording, position: int) -> list[TensorStats]:
    """Statistics of what an operation read; none if not finite, or unknown."""
    found = [recording.stats(source) for source, _ in recording.operands(position)]
    known = [stats for stats in found if stats is not None and stats.is_finite and stats.numel]
    return known if len(known) == len(found) else []
