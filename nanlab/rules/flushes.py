"""Losses without a NaN: values flushed to zero."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from nanlab.analysis.absorbed_updates import FEW
from nanlab.analysis.first_losses import first_losses
from nanlab.analysis.training import where
from nanlab.capture.flushes import QUOTIENTS, SQUARES
from nanlab.formats import format_of
from nanlab.history import Flush
from nanlab.rules._origin import place_of
from nanlab.rules._rule import Finding, Fix, rule
from nanlab.rules.losses import NEARLY_ALL, always, by_victim, in_part, lasts
from nanlab.rules.scaler import scaled_loss
from nanlab.trace import Trace
from nanlab.trace.recording import PHASES, Recording

COSTLY = ("gradient", "update")  # of a parameter: its whole gradient or update


@rule(
    "error",
    family="training",
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
    """By operator and line: results that are zero throughout, while their float32 twin is not, as
    they mostly are."""
    recording = trace.recording
    lost: dict[tuple[str, int], list[int]] = {}
    kept: set[tuple[str, int]] = set()
    for position, shadow in recording.shadows.items():
        row, stats = recording.op(position), recording.stats(position)
        if row is None or stats is None:
            continue
        key = (row.name, row.line)
        if stats.zero == stats.numel >= FEW and 2 * shadow.flushed >= stats.numel:
            lost.setdefault(key, []).append(position)
        elif stats.zero < stats.numel:
            kept.add(key)
    return {key: positions for key, positions in lost.items() if key not in kept}


def _twin_finding(trace: Trace, positions: list[int]) -> Finding:
    recording, position = trace.recording, positions[0]
    row = recording.op(position)
    assert row is not None
    shadow, limits = recording.shadows[position], format_of(row.dtype)
    twin = shadow.stats
    largest = (
        max(abs(twin.min), abs(twin.max)) if twin.min is not None and twin.max is not None else 0.0
    )
    place = place_of(trace, position)
    return Finding(
        cause="dtype-underflow",
        severity="error",
        title=(
            f"{place['op']} flushes all {twin.numel:,} values to zero in {limits.name}: all its"
            " values are lost"
        ),
        explanation=(
            f"{dtype_underflow.explanation} In float32 the largest of them is {largest:.3g};"
            f" {limits.name} rounds everything up to {limits.rounds_to_zero:.3g} to zero."
        ),
        phase=PHASES[row.phase],
        step=recording.step_of(position),
        symptom="silent-underflow",
        fixes=[Fix("compute this in float32", "x.float()")],
        harmful=True,
        **place,
    )


def _flush_finding(trace: Trace, cost: str, flushes: list[Flush]) -> Finding:
    recording = trace.recording
    flush = flushes[0]
    harmful = (
        lasts(trace, by_victim(flushes))
        if cost in COSTLY
        else cost == "value" and always(trace, flushes)
    )
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
        explanation=(
            f"{dtype_underflow.explanation} The largest magnitude"
            f" {'to be squared ' if squares else ''}is {flush.largest:.3g}; {limits.name} rounds"
            f" everything up to {limits.rounds_to_zero:.3g} to zero."
        ),
        step=recording.step_of(flush.first),
        symptom="silent-underflow",
        fixes=_flush_fixes(recording, flush),
        harmful=harmful,
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
