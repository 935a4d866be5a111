"""Updates that change nothing: too small for the dtype of what they are added to."""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch

from nanlab.analysis.absorbed_updates import (
    DROPPED,
    FEW,
    moves_in_float32,
    severity_afterwards,
    severity_from_start,
    stopped,
)
from nanlab.analysis.training import where
from nanlab.formats import format_of
from nanlab.history import AbsorbedUpdate
from nanlab.rules._rule import Finding, Fix, Severity, rule
from nanlab.trace import Trace

TRIED = 4  # parameters of which a step is run again, to see whether one moves in float32


@rule(
    "error",
    family="training",
    example="""
        w = nn.Parameter(torch.ones(16, dtype=torch.bfloat16))
        opt = torch.optim.SGD([w], lr=1e-3)
        for i in range(3):
            opt.zero_grad()
            w.sum().backward()
            opt.step()  # here
    """,
    fix="""
        w = nn.Parameter(torch.ones(16))
        opt = torch.optim.SGD([w], lr=1e-3)
        for i in range(3):
            opt.zero_grad()
            w.sum().backward()
            opt.step()
    """,
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
    """Whether the updates so far prove something. What is copied back may come from a wide copy
    that is kept from now on."""
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
    title, code = (
        "count in an integer, which model.to(dtype) leaves alone",
        "torch.zeros((), dtype=torch.int64)",
    )
    if not counts:
        title, code = (
            "keep it out of model.to(dtype): a Python number, or float32",
            f"model.{name} = model.{name}.float()   # after model.to(dtype)",
        )
    goes_on = moves_in_float32(trace.recording, member.owner, member.at.op) == (1, 1)
    fix = (
        Fix(f"{title}; in float32 it goes on", code, verdict="verified")
        if goes_on
        else Fix(title, code)
    )
    return Finding(
        cause="absorbed-update",
        severity="error",
        title=(
            f"{name} stands at {member.value:.10g}{size} for good: what {member.at.op} adds is"
            f" below half an ulp in {dtype}"
        ),
        explanation=(
            f"{absorbed_update.explanation} {text} Nothing moved in the last {member.still} steps."
        ),
        step=trace.recording.step_of(member.first),
        symptom="silent-underflow",
        fixes=[fix],
        harmful=True,
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
    return Finding(
        cause="absorbed-update",
        severity=severity,
        title=(
            f"{largest.at.op} changes no element of {shown}: every update is below half an ulp in"
            f" {limits.name}"
        ),
        explanation=(
            f"{absorbed_update.explanation} Neighbouring {limits.name} values differ by one part in"
            f" {round(1 / limits.ulp)}; an update below half of that rounds to nothing, in each of"
            f" {largest.still} steps.{_history(largest)}"
        ),
        step=recording.step_of(first.first),
        symptom="silent-underflow",
        fixes=[_in_float32(trace, stuck), _larger(trace, largest, round(4 / limits.ulp))],
        harmful=severity == "error",
        **(where(recording, first.at)),
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
    return Finding(
        cause="absorbed-update",
        severity="error",
        title=(
            f"{first.at.op} changes no element of {shown}: its factor is exactly 0 in"
            f" {first.coefficient}"
        ),
        explanation=(
            f"{absorbed_update.explanation} Here a coefficient near 1 was rounded to 1 in"
            f" {first.coefficient}, so that 1 minus it is 0, in each of {first.still} steps."
        ),
        step=trace.recording.step_of(first.first),
        symptom="silent-underflow",
        fixes=[Fix("keep the coefficient in float32, or a Python number", "decay = 0.9999")],
        harmful=True,
        **where(trace.recording, first.at),
    )
