"""Losses without a NaN: values flushed to zero, updates that change nothing."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import torch

from nanlab.analysis.first_losses import first_losses
from nanlab.analysis.standing import moves_in_float32
from nanlab.analysis.standstills import DROPPED, FEW, severity_afterwards, severity_from_start, stopped
from nanlab.analysis.training import where
from nanlab.capture.silent import SQUARES
from nanlab.formats import format_of
from nanlab.history import Flush, Standstill
from nanlab.rules._origin import place_of
from nanlab.rules._rule import TRAINING, Finding, Fix, Severity, rule
from nanlab.rules._scaler import scaled_loss
from nanlab.rules.losses import NEARLY_ALL, in_part, lasts
from nanlab.trace import Trace
from nanlab.trace.recording import DTYPE, LINE, OP, PHASE, PHASES, Recording


@rule(
    "error",
    precedence=TRAINING,
    example="""
        net = nn.Linear(4, 2)
        for i in range(2):
            net.zero_grad()
            half = net(torch.ones(3, 4)).half()
            wide = half.float()  # here
            (1e-9 * wide).sum().backward()
    """,
    fix="""
        net = nn.Linear(4, 2)
        for i in range(2):
            net.zero_grad()
            half = net(torch.ones(3, 4)).half()
            wide = half.float()
            (1e-3 * wide).sum().backward()
    """,
)
def dtype_underflow(trace: Trace) -> Iterator[Finding]:
    """Values too small for the dtype became exact zeros: nothing is learned there, and nothing says so."""
    flushes = [flush for flush in trace.recording.training.flushes.values() if not flush.overflow]
    told = {(flush.at.op, flush.at.line) for flush in flushes if flush.cost != "tensor"}
    measured = {key: positions for key, positions in _flushed_whole(trace).items() if key not in told}
    groups: dict[tuple[str, Any, str], list[Flush]] = {}
    for flush in flushes:
        if flush.cost != "tensor":  # the operations of a deep net's layers take turns
            groups.setdefault(("", trace.recording.places[flush.at.line][:2], flush.cost), []).append(flush)
        elif (flush.at.op, flush.at.line) not in told | measured.keys():
            groups.setdefault((flush.at.op, flush.at.line, flush.cost), []).append(flush)
    yield from (_flush_finding(trace, key[2], sorted(alike, key=lambda f: f.first)) for key, alike in groups.items())
    yield from (_twin_finding(trace, positions) for positions in measured.values())
    known = {(flush.at.op, trace.recording.places[flush.at.line][1]) for flush in flushes} | measured.keys()
    for loss in first_losses(trace).to_dict("records"):
        if loss["told_by"] != "epsilon" and loss["share"] >= NEARLY_ALL and (loss["op"], loss["line"]) not in known:
            yield in_part(trace, loss, dtype_underflow.explanation)


def _flushed_whole(trace: Trace) -> dict[tuple[str, int], list[int]]:
    """By operator and line: results that are zero throughout, while their float32 twin is not, as they mostly are."""
    recording = trace.recording
    lost: dict[tuple[str, int], list[int]] = {}
    kept: set[tuple[str, int]] = set()
    for position, shadow in recording.shadows.items():
        row, stats = recording.row(position), recording.stats(position)
        if row is None or stats is None:
            continue
        key = (recording.ops.items[row[OP]], recording.places[row[LINE]][1])
        if stats.zero == stats.numel >= FEW and 2 * shadow.flushed >= stats.numel:
            lost.setdefault(key, []).append(position)
        elif stats.zero < stats.numel:
            kept.add(key)
    return {key: positions for key, positions in lost.items() if key not in kept}


def _twin_finding(trace: Trace, positions: list[int]) -> Finding:
    recording, position = trace.recording, positions[0]
    row = recording.row(position)
    assert row is not None
    shadow, limits = recording.shadows[position], format_of(recording.dtypes.items[row[DTYPE]])
    chunk = recording.chunks[shadow.stat >> 32]
    twin = chunk.stats.stats(chunk.stat_row(shadow.stat))
    largest = max(abs(twin.min), abs(twin.max)) if twin.min is not None and twin.max is not None else 0.0
    place = place_of(trace, position)
    return Finding(
        cause="dtype-underflow",
        severity="error",
        title=f"{place['op']} flushes all {twin.numel:,} values to zero in {limits.name}: all its values are lost",
        explanation=f"{dtype_underflow.explanation} In float32 the largest of them is {largest:.3g}; {limits.name} "
        f"rounds everything up to {limits.rounds_to_zero:.3g} to zero.",
        phase=PHASES[row[PHASE]],
        step=recording.step_of(position),
        symptom="silent-underflow",
        fixes=[Fix("compute this in float32", "x.float()")],
        harmful=True,
        **place,
    )


def _flush_finding(trace: Trace, cost: str, flushes: list[Flush]) -> Finding:
    recording = trace.recording
    flush = flushes[0]
    harmful = cost != "tensor" and lasts(trace, _by_victim(flushes))
    names = list(dict.fromkeys(f.name for f in flushes if f.name))
    shown = ", ".join(names[:2]) + (f" and {len(names) - 2} more" if len(names) > 2 else "")
    loses = {
        "gradient": f"the whole gradient of {shown} is lost",
        "update": f"{shown} {'gets' if len(names) == 1 else 'get'} no update",
    }.get(cost, "all its values are lost")
    squares = flush.at.op in SQUARES and cost == "tensor"
    if squares:
        loses = "the optimizer's second moment is lost, and eps alone sets the size of its steps"
    limits = format_of(_dtype(flush.at.dtype))
    place = where(recording, flush.at)
    return Finding(
        cause="dtype-underflow",
        severity="error" if harmful else "warning",
        title=f"{place['op']} flushes all {flush.numel:,} values to zero in {limits.name}: {loses}",
        explanation=f"{dtype_underflow.explanation} The largest magnitude {'to be squared ' if squares else ''}is {flush.largest:.3g}; "
        f"{limits.name} rounds everything up to {limits.rounds_to_zero:.3g} to zero.",
        step=recording.step_of(flush.first),
        symptom="silent-underflow",
        fixes=_flush_fixes(recording, flush, limits.name),
        harmful=harmful,
        **place,
    )


def _by_victim(flushes: list[Flush]) -> list[Flush]:
    """One flush for each parameter that lost something, with the steps of all: in each step one operation is to blame."""
    counts: dict[str, int] = {}
    for flush in flushes:
        counts[flush.name] = counts.get(flush.name, 0) + flush.count
    return [replace(flushes[0], name=name, count=count) for name, count in counts.items()]


def _dtype(name: str) -> torch.dtype:
    return getattr(torch, name)  # type: ignore[no-any-return]


def _flush_fixes(recording: Recording, flush: Flush, name: str) -> list[Fix]:
    fixes = []
    if flush.cost == "gradient" and name == "float16":
        fixes.append(scaled_loss(recording))
    if name == "float16":
        fixes.append(Fix("a dtype with float32's range", "torch.bfloat16"))
    fixes.append(Fix("compute this in float32", "x.float()"))
    return fixes


@rule(
    "error",
    precedence=TRAINING,
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
    """An update smaller than half an ulp of what it is added to changes no bit of it: nothing moves.

    bfloat16 keeps 8 bits: an update below one part in 512 of the weight is lost.
    """
    groups: dict[tuple[str, int], list[Standstill]] = {}
    for still in trace.recording.training.standstills.values():
        groups.setdefault((still.at.op, still.at.line), []).append(still)
    for members in groups.values():
        yield from (_stopped_finding(trace, m) for m in members if stopped(m))
        numel = sum(m.numel for m in members)
        grades: dict[Severity, list[Standstill]] = {}
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
            yield _absorbed_finding(trace, sorted(alike, key=lambda m: (-m.numel, m.first)), severity)


def _proves(member: Standstill) -> bool:
    """Whether the updates so far prove something. What is copied back may come from a wide copy that is kept from now on."""
    return member.still > 1 or (member.numel >= FEW and member.at.op != "copy_")


def _stopped_finding(trace: Trace, member: Standstill) -> Finding:
    name, dtype = trace.recording.parameter_names[member.owner], member.at.dtype
    title = "count in an integer, which model.to(dtype) leaves alone"
    goes_on = moves_in_float32(trace.recording, member.owner, member.at.op) == (1, 1)
    fix = Fix(f"{title}; in float32 it goes on", "torch.zeros((), dtype=torch.int64)", verified=True)
    return Finding(
        cause="absorbed-update",
        severity="error",
        title=f"{name} stands at {member.value:g} for good: what {member.at.op} adds is below half an ulp in {dtype}",
        explanation=f"{absorbed_update.explanation} A count of steps in {dtype} ends where neighbouring values are 2 apart: at "
        f"{2 / format_of(_dtype(dtype)).ulp:g}. Nothing moved in the last {member.still} steps.",
        step=trace.recording.step_of(member.first),
        symptom="silent-underflow",
        fixes=[fix if goes_on else Fix(title, "torch.zeros((), dtype=torch.int64)")],
        harmful=True,
        **where(trace.recording, member.at),
    )


def _absorbed_finding(trace: Trace, stuck: list[Standstill], severity: Severity) -> Finding:
    recording = trace.recording
    largest = stuck[0]
    limits = format_of(_dtype(largest.at.dtype))
    names = [recording.parameter_names[m.owner] for m in stuck]
    shown = ", ".join(names[:2]) + (f" and {len(names) - 2} more" if len(names) > 2 else "")
    first = min(stuck, key=lambda m: m.first)
    if largest.coefficient:
        return _vanished_finding(trace, first, shown)
    return Finding(
        cause="absorbed-update",
        severity=severity,
        title=f"{largest.at.op} changes no element of {shown}: every update is below half an ulp in {limits.name}",
        explanation=f"{absorbed_update.explanation} Neighbouring {limits.name} values differ by one part in "
        f"{round(1 / limits.ulp)}; an update below half of that rounds to nothing, in each of {largest.still} steps.{_history(largest)}",
        step=recording.step_of(first.first),
        symptom="silent-underflow",
        fixes=[
            _in_float32(trace, stuck),
            Fix(
                "stochastic rounding, or a larger step",
                f"lr=...  # so that updates exceed value / {round(4 / limits.ulp):,}",
            ),
        ],
        harmful=severity == "error",
        **(where(recording, first.at)),
    )


def _history(member: Standstill) -> str:
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


def _in_float32(trace: Trace, stuck: list[Standstill]) -> Fix:
    """Wider values, tried on an update that was kept."""
    title, code = "keep these values in float32", "model.float()  # and torch.autocast for the forward pass"
    if stuck[0].by_hand:
        code = "ema = {k: v.detach().float().clone() for k, v in model.state_dict().items()}"
    tried = (moves_in_float32(trace.recording, m.owner, m.at.op) for m in stuck)
    moved, numel = next((t for t in tried if t is not None), (0, 0))
    if not moved:
        return Fix(title, code)
    return Fix(f"{title}: {moved:,} of {numel:,} elements move, where none did", code, verified=True)


def _vanished_finding(trace: Trace, first: Standstill, shown: str) -> Finding:
    return Finding(
        cause="absorbed-update",
        severity="error",
        title=f"{first.at.op} changes no element of {shown}: its factor is exactly 0 in {first.coefficient}",
        explanation=f"{absorbed_update.explanation} Here a coefficient near 1 was rounded to 1 in {first.coefficient}, so that "
        f"1 minus it is 0, in each of {first.still} steps.",
        step=trace.recording.step_of(first.first),
        symptom="silent-underflow",
        fixes=[Fix("keep the coefficient in float32, or a Python number", "decay = 0.9999")],
        harmful=True,
        **where(trace.recording, first.at),
    )


RULES = (dtype_underflow, absorbed_update)
