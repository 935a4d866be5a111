"""Absorbed updates: too small for the dtype of what they are added to."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any, Literal

import torch

from nanlab.analysis.training import where
from nanlab.findings.rule import Finding, Fix, Severity, rule
from nanlab.formats import format_of
from nanlab.program.evidence import latest_absorbed_update
from nanlab.trace import Trace
from nanlab.trace.history import AbsorbedUpdate
from nanlab.trace.recording import Recording

# Absorbed updates: how bad one is, and whether it moves its parameter in float32.

Grade = Literal["error", "warning", "note"]
SHARE = 0.1  # of its optimizer's elements that a single stuck parameter must have to be an error
# the same in float32, where the gradient of a bias before a batch norm is rounding noise
MOST = 0.5
STOPPED = 3  # steps in which a counter must stand still
VARIES = 8  # the same of a sum of changing values
# Steps in which a small part that never moved must stand still to be an error: the first few may be
# those of a warm-up.
BEGUN = 8
ALONE = 16  # the same of a few numbers, a temperature say, that never move
# Steps in a row in which a parameter must stand still to be told though it moved before. One that
# moves every other step, as updates near half an ulp do, stands still four times in a row by chance
# once in 16; and the last three steps of a schedule that ends at zero are small in any dtype.
LASTS = 4
LONG = 10  # and to be told though that is a small part of its updates
# times as long as it ever stood still before it went on: compensated and stochastic updates come in
# jumps
LONGER = 3
# bits by which the rate must have fallen: at the same rate, what moved at first has mostly
# converged
DROPPED = 1.0
# log2 of the rms of gradients: in float32 what is below is rounding noise of numbers near 1, with 4
# bits to spare, as that of a bias before a batch norm; and what may be all that is left in a fit
# that has converged.
NOISE, SMALL = -20.0, -14.0
FEW = 8  # elements below which a single step proves nothing


def severity_from_start(
    recording: Recording, member: AbsorbedUpdate, count: int, share: float
) -> Grade | None:
    """How bad it is that a parameter never moved; None where it is no fault.

    count: of such parameters, share: of the elements on that line.
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


def severity_afterwards(member: AbsorbedUpdate) -> Grade | None:
    """How bad it is that a parameter no longer moves; None where it is no fault."""
    still, updates = member.still, member.still + member.moved
    if (
        not member.standing.updates
        or still < LASTS
        or still < LONGER * member.paused
        or member.numel < FEW
    ):
        return None
    if _wide(member) and (member.fell("rate") < DROPPED or _gradient(member) < SMALL):
        return None
    # a rate that float32 absorbs is meant as the end of a schedule
    whole: Grade = "note" if _wide(member) else "error"
    if member.fell("rate") < DROPPED:  # at the rate at which it moved
        return "note" if still >= LONG else None
    if _rate_changed(member):  # the end of a cosine, say
        return whole if 2 * still >= updates else "note" if 4 * still >= updates else None
    return whole if still >= LONG or 4 * still >= updates else None


def _rate_changed(member: AbsorbedUpdate) -> float:
    """Bits by which the rate rose (fell: below 0) while the parameter stood; 0: under one."""
    change = member.standing.last - member.standing.first
    return change if abs(change) >= 1.0 else 0.0


def _gradient(member: AbsorbedUpdate) -> float:
    """log2 of the gradient's rms, averaged over updates without effect; inf: unknown."""
    return (
        member.standing.gradient / member.standing.updates if member.standing.updates else math.inf
    )


def stopped(member: AbsorbedUpdate) -> bool:
    """Whether a counter or a sum went on for a while, and then no more."""
    steps = STOPPED if member.most <= member.update else VARIES
    return member.counter and member.still >= steps


def _wide(member: AbsorbedUpdate) -> bool:
    """Whether it is of float32's precision or better."""
    return getattr(torch, member.at.dtype).itemsize >= 4  # type: ignore[no-any-return]


def moves_in_float32(recording: Recording, owner: int, op: str) -> tuple[int, int] | None:
    """(elements that move in float32, all of them), of an update by ``op`` that moves none in half
    precision.

    The operation is run again on the operands of one such update. None where no step at hand has
    one.
    """
    kept = latest_absorbed_update(recording, owner, op)
    if kept is None:
        return None
    try:
        with torch.no_grad():
            return _moved(kept.op, kept.args, kept.kwargs, _as_float32)
    except RuntimeError:
        return None


def _moved(op: Any, args: Any, kwargs: Any, change: Any) -> tuple[int, int]:
    """(elements that an in-place operation changes, all), once ``change`` was applied."""
    made = [_each(a, change) for a in args]
    target = made[0][0] if isinstance(made[0], list) else made[0]
    before = target.clone()
    op(*made, **{k: _each(v, change) for k, v in kwargs.items()})
    return int((target != before).sum()), target.numel()


def _each(value: Any, change: Any) -> Any:
    if isinstance(value, (list, tuple)):
        return [_each(v, change) for v in value]
    return change(value) if isinstance(value, torch.Tensor) else value


def _as_float32(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.float() if tensor.is_floating_point() else tensor


# Updates that change nothing: too small for the dtype of what they are added to.

TRIED = 4  # parameters of which a step is run again, to see whether one moves in float32


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
    """An update smaller than half an ulp of what it is added to changes no bit of it: nothing
    moves."""
    groups: dict[tuple[str, int], list[AbsorbedUpdate]] = {}
    for still in trace.recording.training.absorbed_updates.values():
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


def _proves(member: AbsorbedUpdate) -> bool:
    """Whether the updates prove something; what is copied back may have a wide copy now."""
    return member.still > 1 or (member.numel >= FEW and member.at.op != "copy_")


def _stopped_finding(trace: Trace, member: AbsorbedUpdate) -> Finding:
    name, dtype = trace.recording.parameter_names[member.owner], member.at.dtype
    limits = format_of(getattr(torch, dtype))
    size = f" (rms of {member.numel:,} elements)" if member.numel > 1 else ""
    counts = abs(member.value) >= 1 / limits.ulp  # neighbours are 1 or more apart
    text = (
        f"A count of steps in {dtype} ends where neighbouring values are 2 apart: at"
        f" {2 / limits.ulp:.10g}."
        if counts
        else (
            f"Neighbouring {dtype} values are"
            f" {limits.ulp * 2.0 ** math.frexp(member.value)[1] / 2:.3g} apart there."
        )
    )
    title = "count in an integer, which model.to(dtype) leaves alone"
    code = "torch.zeros((), dtype=torch.int64)"
    if not counts:
        title = "keep it out of model.to(dtype): a Python number, or float32"
        code = f"model.{name} = model.{name}.float()   # after model.to(dtype)"
    if moves_in_float32(trace.recording, member.owner, member.at.op) == (1, 1):
        fix = Fix(f"{title}; in float32 it goes on", code, verdict="verified")
    else:
        fix = Fix(title, code)
    return absorbed_update.finding(
        f"{name} stands at {member.value:.10g}{size} for good: what {member.at.op} adds is"
        f" below half an ulp in {dtype}",
        f"{text} Nothing moved in the last {member.still} steps.",
        step=trace.recording.step_of(member.first),
        symptom="silent-underflow",
        fixes=[fix],
        **where(trace.recording, member.at),
    )


def _absorbed_finding(trace: Trace, stuck: list[AbsorbedUpdate], severity: Severity) -> Finding:
    recording = trace.recording
    largest = stuck[0]
    limits = format_of(getattr(torch, largest.at.dtype))
    names = [recording.parameter_names[m.owner] for m in stuck]
    shown = ", ".join(names[:2]) + (f" and {len(names) - 2} more" if len(names) > 2 else "")
    first = min(stuck, key=lambda m: m.first)
    if largest.coefficient:
        return _vanished_finding(trace, first, shown)
    return absorbed_update.finding(
        f"{largest.at.op} changes no element of {shown}: every update is below half an ulp in"
        f" {limits.name}",
        f"Neighbouring {limits.name} values differ by one part in"
        f" {round(1 / limits.ulp)}; an update below half of that rounds to nothing, in each of"
        f" {largest.still} steps.{_history(largest)}",
        severity=severity,
        step=recording.step_of(first.first),
        symptom="silent-underflow",
        fixes=[_in_float32(trace, stuck), _larger(trace, largest, round(4 / limits.ulp))],
        **where(recording, first.at),
    )


def _history(member: AbsorbedUpdate) -> str:
    """What became smaller when a parameter ceased to move."""
    if not member.moved:
        return ""
    gradient, rate = member.fell("gradient"), member.fell("rate")
    told = [
        f"the {name} {2**bits:.2g} times smaller"
        for name, bits in (("learning rate", rate), ("gradient", gradient))
        if bits >= DROPPED
    ]
    since = f", with {' and '.join(told)} than before" if told else ""
    return f" It moved in {member.moved} steps, and has stood still since{since}."


def _larger(trace: Trace, member: AbsorbedUpdate, part: int) -> Fix:
    """Larger updates; ``part``: of a value that an update must exceed."""
    if member.by_hand and not _trained(trace, member):
        return Fix(
            "larger steps, and fewer",
            f"decay = decay**k  # every k steps, so that updates exceed value / {part:,}",
        )
    return Fix(
        "stochastic rounding, or a larger step",
        f"lr=...  # so that updates exceed value / {part:,}",
    )


def _trained(trace: Trace, member: AbsorbedUpdate) -> bool:
    """Whether it is a parameter that had gradients, rather than an average or a statistic."""
    return any(
        s.owner == member.owner and s.gradient is not None
        for s in trace.recording.training.parameters
    )


def _wider(trace: Trace, member: AbsorbedUpdate) -> str:
    """What to write to hold something in float32."""
    recording = trace.recording
    name = recording.parameter_names[member.owner].rpartition(".")[2]
    if not member.by_hand:
        return "model.float()  # and torch.autocast for the forward pass"
    if _trained(trace, member):
        return (
            "master = [p.detach().float() for p in model.parameters()]  # update these, then"
            " p.copy_(m)"
        )
    if (
        recording.parameter_kinds[member.owner] == "buffer"
        and name.isidentifier()
        and member.at.module
    ):
        return f"self.{name} = self.{name}.float()"  # written by the module itself
    return "ema = {k: v.detach().float().clone() for k, v in model.state_dict().items()}"


def _in_float32(trace: Trace, stuck: list[AbsorbedUpdate]) -> Fix:
    """Wider values, tried on an update that a replay makes again."""
    if getattr(torch, stuck[0].at.dtype).itemsize >= 4:
        return Fix(
            "learn the distance from a reference value, which small steps do change",
            "value = reference + self.offset",
        )
    title, code = "keep these values in float32", _wider(trace, stuck[0])
    tried = (moves_in_float32(trace.recording, m.owner, m.at.op) for m in stuck[:TRIED])
    moved, numel = next((t for t in tried if t is not None), (0, 0))
    if not moved:
        return Fix(title, code)
    return Fix(
        f"{title}: {moved:,} of {numel:,} elements move, where none did", code, verdict="verified"
    )


def _vanished_finding(trace: Trace, first: AbsorbedUpdate, shown: str) -> Finding:
    return absorbed_update.finding(
        f"{first.at.op} changes no element of {shown}: its factor is exactly 0 in"
        f" {first.coefficient}",
        f"Here a coefficient near 1 was rounded to 1 in"
        f" {first.coefficient}, so that 1 minus it is 0, in each of {first.still} steps.",
        step=trace.recording.step_of(first.first),
        symptom="silent-underflow",
        fixes=[Fix("keep the coefficient in float32, or a Python number", "decay = 0.9999")],
        **where(trace.recording, first.at),
    )
