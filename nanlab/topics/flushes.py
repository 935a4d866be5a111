"""Losses without a NaN: values flushed to zero, lost signal, dead parameters."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import pandas as pd
import torch

from nanlab.analysis.signal_loss import first_losses
from nanlab.analysis.training import where
from nanlab.capture.flushes import QUOTIENTS, SQUARES
from nanlab.findings.fault import place_of
from nanlab.findings.rule import Finding, Fix, rule
from nanlab.formats import FloatFormat, format_of
from nanlab.operators import spoken
from nanlab.topics.absorbed_updates import FEW
from nanlab.topics.scaler import scaled_loss
from nanlab.trace import Trace
from nanlab.trace.history import Dead, Flush
from nanlab.trace.recording import PHASES, Recording

# Signal that low precision loses although nothing breaks: most of a result, or an epsilon.

LASTING = 0.5  # share of the steps since the first in which a loss must recur to be an error
SEVERAL = 3  # steps
NEARLY_ALL = 0.9  # share of the values of a result from which a loss is worth a warning


def _steps_since(trace: Trace, position: int) -> int:
    """Training steps with a backward pass, from the one of a position on."""
    recording = trace.recording
    first = recording.step_of(position)
    steps = {
        recording.step_of(loss.position)
        for loss in recording.training.losses
        if recording.step_of(loss.position) >= first
    }
    return max(1, len(steps))


def lasts(trace: Trace, flushes: Sequence[Flush]) -> bool:
    """Whether a loss of signal recurs, rather than come with a batch now and then."""
    return max(f.count for f in flushes) >= LASTING * _steps_since(
        trace, min(f.first for f in flushes)
    )


def by_victim(flushes: Sequence[Flush]) -> list[Flush]:
    """One flush for each parameter that lost something, with the steps of all."""
    counts: dict[str, int] = {}
    for flush in flushes:
        counts[flush.name] = counts.get(flush.name, 0) + flush.count
    first = min(flushes, key=lambda f: f.first)
    return [replace(first, name=name, count=count) for name, count in counts.items()]


def always(trace: Trace, flushes: Sequence[Flush]) -> bool:
    """Whether several steps lost something, the first too: no fit has converged."""
    first, recording = min(f.first for f in flushes), trace.recording
    earliest = min(
        (recording.step_of(loss.position) for loss in recording.training.losses), default=-1
    )
    steps = _steps_since(trace, first)
    return (
        recording.step_of(first) == earliest
        and steps >= SEVERAL
        and max(f.count for f in flushes) >= steps
    )


def in_part(trace: Trace, loss: dict[Hashable, Any], explanation: str) -> Finding:
    """The finding of a row of ``first_losses``."""
    title = (
        f"{spoken(loss['op'])} flushes {loss['share']:.0%} of the {loss['numel']:,} values to zero"
        f" in {_format(loss).name}"
    )
    cure = Fix("compute this in float32; of gradients, a larger loss scale", "x.float()")
    return _lost(trace, loss, "dtype-underflow", title, explanation, cure)


def _format(loss: dict[Hashable, Any]) -> FloatFormat:
    return format_of(getattr(torch, loss["dtype"]))


def _lost(
    trace: Trace, loss: dict[Hashable, Any], cause: str, title: str, explanation: str, cure: Fix
) -> Finding:
    limits = _format(loss)
    return Finding(
        cause=cause,
        severity="warning",
        title=title,
        explanation=(
            f"{explanation} {limits.name} rounds everything up to {limits.rounds_to_zero:.3g} to"
            " zero."
        ),
        phase=loss["phase"],
        step=loss["step"],
        symptom="silent-underflow",
        fixes=[cure],
        **place_of(trace, loss["position"]),
    )


@rule(
    "warning",
    family="training",
    events=("holds_low_precision",),
    example="""
        x = torch.tensor([1.0, 2.0, 4.0, 0.0], dtype=torch.float16)
        var = x.var()
        y = (x - x.mean()) * torch.rsqrt(var + 1e-9)  # here
    """,
    fix={"var + 1e-9": "var + 1e-5"},
)
def eps_underflow(trace: Trace) -> Iterator[Finding]:
    """An epsilon that the dtype rounds to zero protects from nothing: the first value that needs it
    will fail."""
    losses = first_losses(trace)
    for loss in losses[losses["told_by"] == "epsilon"].to_dict("records"):
        amount = "the epsilon" if pd.isna(loss["largest"]) else f"an epsilon of {loss['largest']:g}"
        title = f"{amount} is 0 in {_format(loss).name}, so {loss['op']} does nothing here"
        cure = Fix(
            "compute this in float32, or take an epsilon that the dtype can hold", "x.float()"
        )
        yield _lost(trace, loss, "eps-underflow", title, eps_underflow.explanation, cure)


@rule(
    "error",
    family="training",
    events=("training.flushes",),
    example="""
        w = torch.ones(2, requires_grad=True)
        mask = torch.full((70000,), 1.0, dtype=torch.float16)
        for i in range(2):
            count = mask.sum()  # here
            ((w * 2).sum() / count).backward()
    """,
    fix={"mask.sum()": "mask.sum(dtype=torch.float32)"},
)
def dtype_overflow_(trace: Trace) -> Iterator[Finding]:
    """A count or a norm overflowed in half precision and was divided by: the quotient is 0, and so
    is every gradient.

    Nothing is infinite in the end, and nothing is learned.
    """
    # on one line now this operation may overflow and now that: a norm of norms
    groups: dict[int, list[Flush]] = {}
    for flush in trace.recording.training.flushes.values():
        if flush.overflow and flush.cost in ("gradient", "update"):
            groups.setdefault(flush.at.line, []).append(flush)
    for flushes in groups.values():
        first = min(flushes, key=lambda f: f.first)
        names = sorted({f.name for f in flushes})
        harmful = lasts(trace, by_victim(flushes))
        shown = names[0] if len(names) == 1 else f"{names[0]} and {len(names) - 1} more"
        yield dtype_overflow_.finding(
            f"{first.at.op} overflows {first.at.dtype} and is divided by: the whole gradient of"
            f" {shown} is 0",
            severity="error" if harmful else "warning",
            step=trace.recording.step_of(first.first),
            symptom="silent-underflow",
            fixes=(
                [Fix("count in float32", "mask.sum(dtype=torch.float32)")]
                if first.at.op == "sum"
                else []
            ),
            **where(trace.recording, first.at),
        )


# Losses without a NaN: values flushed to zero.

COSTLY = ("gradient", "update")  # of a parameter: its whole gradient or update


@rule(
    "error",
    family="training",
    events=("training.flushes", "holds_low_precision"),
    example="""
        net = nn.Linear(4, 2)
        for i in range(2):
            net.zero_grad()
            half = net(torch.ones(3, 4)).half()
            wide = half.float()  # here
            (1e-9 * wide).sum().backward()
    """,
    fix={"1e-9 * wide": "1e-3 * wide"},
)
def dtype_underflow(trace: Trace) -> Iterator[Finding]:
    """Values too small for the dtype became exact zeros: nothing is learned there, and nothing says
    so."""
    flushes = [flush for flush in trace.recording.training.flushes.values() if not flush.overflow]
    lines = trace.recording.places
    told = {(flush.at.op, lines[flush.at.line][1]) for flush in flushes if flush.cost in COSTLY}
    measured = {
        key: positions for key, positions in _flushed_whole(trace).items() if key not in told
    }
    groups: dict[tuple[str, Any, str], list[Flush]] = {}
    for flush in flushes:
        if flush.cost in COSTLY:  # the operations of a deep net's layers take turns
            groups.setdefault(("", lines[flush.at.line][:2], flush.cost), []).append(flush)
        elif (flush.at.op, lines[flush.at.line][1]) not in told | measured.keys():
            groups.setdefault((flush.at.op, flush.at.line, flush.cost), []).append(flush)
    yield from (
        _flush_finding(trace, key[2], sorted(alike, key=lambda f: f.first))
        for key, alike in groups.items()
    )
    yield from (_twin_finding(trace, positions) for positions in measured.values())
    known = {(flush.at.op, lines[flush.at.line][1]) for flush in flushes} | measured.keys()
    for loss in first_losses(trace).to_dict("records"):
        if (
            loss["told_by"] != "epsilon"
            and loss["share"] >= NEARLY_ALL
            and (loss["op"], loss["line"]) not in known
        ):
            yield in_part(trace, loss, dtype_underflow.explanation)


def _flushed_whole(trace: Trace) -> dict[tuple[str, int], list[int]]:
    """By operator and line: all-zero results whose float32 twin is not, mostly."""
    recording = trace.recording
    lost: dict[tuple[str, int], list[int]] = {}
    kept: set[tuple[str, int]] = set()
    for position, shadow in recording.shadows.items():
        row, stats = recording.op(position), recording.stats(position)
        if row is None or stats is None:
            continue
        key = (row.name, row.line)
        if stats.all_zero and stats.numel >= FEW and 2 * shadow.flushed >= stats.numel:
            lost.setdefault(key, []).append(position)
        elif not stats.all_zero:
            kept.add(key)
    return {key: positions for key, positions in lost.items() if key not in kept}


def _twin_finding(trace: Trace, positions: list[int]) -> Finding:
    recording, position = trace.recording, positions[0]
    row = recording.op(position)
    assert row is not None
    shadow, limits = recording.shadows[position], format_of(row.dtype)
    twin = shadow.stats
    place = place_of(trace, position)
    return dtype_underflow.finding(
        f"{place['op']} flushes all {twin.numel:,} values to zero in {limits.name}: all its"
        " values are lost",
        f"In float32 the largest of them is {twin.largest:.3g};"
        f" {limits.name} rounds everything up to {limits.rounds_to_zero:.3g} to zero.",
        phase=PHASES[row.phase],
        step=recording.step_of(position),
        symptom="silent-underflow",
        fixes=[Fix("compute this in float32", "x.float()")],
        **place,
    )


def _flush_finding(trace: Trace, cost: str, flushes: list[Flush]) -> Finding:
    recording = trace.recording
    flush = flushes[0]
    if cost in COSTLY:
        harmful = lasts(trace, by_victim(flushes))
    else:
        harmful = cost == "value" and always(trace, flushes)
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
    return dtype_underflow.finding(
        f"{place['op']} flushes all {flush.numel:,} values to zero in {limits.name}: {loses}",
        f"The largest magnitude"
        f" {'to be squared ' if squares else ''}is {flush.largest:.3g}; {limits.name} rounds"
        f" everything up to {limits.rounds_to_zero:.3g} to zero.",
        severity="error" if harmful else "warning",
        step=recording.step_of(flush.first),
        symptom="silent-underflow",
        fixes=_flush_fixes(recording, flush),
        **place,
    )


def _dtype(name: str) -> torch.dtype:
    return getattr(torch, name)  # type: ignore[no-any-return]


def _flush_fixes(recording: Recording, flush: Flush) -> list[Fix]:
    fixes, half = [], flush.at.dtype == "float16"
    phase = PHASES[flush.at.phase] if flush.cost == "gradient" else ""
    # the scale, say: a larger one would be divided out as well
    if phase == "optimizer" and flush.at.op in QUOTIENTS:
        return [
            Fix(
                "widen the gradient first, and give the wide one to the optimizer",
                "grad = p.grad.float()",
            )
        ]
    if phase == "backward" and half:
        fixes.append(scaled_loss(recording))
    if half:
        fixes.append(Fix("a dtype with float32's range", "torch.bfloat16"))
    fixes.append(Fix("compute this in float32", "x.float()"))
    return fixes


# Parameters to which no gradient comes, although the loss is computed with them.

_WHY = {
    "blocked": (
        "{op} multiplies it by a 0 that comes from {blockers}; no gradient arrives there either, so"
        " neither can leave 0."
    ),
    "flat": "{op} is constant between its jumps: its derivative is 0 everywhere.",
    "choice": (
        "{op} took the other alternative, or stood beyond its bound, for all {numel:,} values:"
        " their derivative is 0."
    ),
    "value": (
        "{op} gives exactly 0 for all {numel:,} values, and the gradient is multiplied by them."
    ),
    "saturated": (
        "The derivative of {op} is exactly 0 for all {numel:,} values: they lie where it is flat in"
        " floating point."
    ),
}
_FIXES = {
    "blocked": Fix(
        "begin with zeros in one factor of a product only, and with random values in the other",
        "nn.init.kaiming_uniform_(layer.weight, a=5**0.5)",
    ),
    "flat": Fix("pass the gradient straight through", "x + (torch.round(x) - x).detach()"),
    "choice": Fix(
        "let some gradient through beyond the bound, or start within it", "F.leaky_relu(x, 0.01)"
    ),
    "value": Fix(
        "compute the logarithm instead, and exponentiate last or not at all",
        "log_density = -0.5 * z**2",
    ),
    "saturated": Fix(
        "use the form in the log domain, or bring the values closer", "F.logsigmoid(x)"
    ),
}


@rule(
    "error",
    events=("training.starved",),
    example="""
        p = nn.Parameter(torch.tensor([0.4, 1.6]))
        for i in range(2):
            p.grad = None
            q = torch.round(p)  # here
            (q - 1).square().sum().backward()
    """,
    fix={"torch.round(p)": "p + (torch.round(p) - p).detach()"},
)
def dead_gradient(trace: Trace) -> Iterator[Finding]:
    """The parameter is used, and its gradient is exactly zero: it never moves."""
    recording = trace.recording
    history = recording.training
    flushed = {flush.name for flush in history.flushes.values() if flush.cost == "gradient"}
    groups: dict[tuple[int, str, bool], list[int]] = {}
    lasting = {recording.parameter_names[owner]: owner for owner in history.starved}
    for name, owner in lasting.items():
        dead = history.dead[owner]
        if name not in flushed and all(blocker in lasting for blocker in dead.blockers):
            assert dead.at is not None
            groups.setdefault((dead.at.line, dead.why, dead.lived), []).append(owner)
    # a product with what died gives its weights nothing either: what learns then is no offset
    ends = any(dead.unknown and not dead.alive for dead in history.dead.values())
    others = [d for d in history.dead.values() if d.lived and not (ends and d.offset)]
    for (_, why, _), owners in groups.items():
        dead = history.dead[owners[0]]
        learns = any(other.alive or not dead.lived for other in others)
        # what lived goes on where the next batch, or another part, has something to learn
        rests = dead.lived and (
            why != "choice" or learns or not any(d.alive for d in history.dead.values())
        )
        if not rests and (why != "choice" or not _converged(trace)):
            names = [recording.parameter_names[owner] for owner in owners]
            yield _finding(trace, names, dead, learns)


def _converged(trace: Trace) -> bool:
    """Whether the loss is 0: what is bounded has nothing left to learn."""
    recording = trace.recording
    losses = [recording.value(loss.source) for loss in recording.training.losses]
    return bool(losses) and losses[-1] == 0.0


def _finding(trace: Trace, names: list[str], dead: Dead, learns: bool) -> Finding:
    recording = trace.recording
    assert dead.at is not None
    place = where(recording, dead.at) | {"op": dead.at.op}
    shown = ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
    error = dead.why != "choice" or not learns
    told = _WHY[dead.why].format(
        op=place["op"], numel=dead.numel, blockers=" and ".join(dead.blockers)
    )
    return dead_gradient.finding(
        f"no gradient arrives at {shown}: it is exactly 0 in"
        f" {'the last' if dead.lived else 'all'} {dead.steps} steps. {told}",
        severity="error" if error else "warning",
        step=recording.step_of(dead.first),
        symptom="silent-underflow",
        fixes=[_FIXES[dead.why]],
        **place,
    )
