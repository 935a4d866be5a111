"""Signal that low precision loses although nothing breaks: most of a result, or an epsilon."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import pandas as pd
import torch

from nanlab.analysis.first_losses import first_losses
from nanlab.analysis.training import where
from nanlab.formats import FloatFormat, format_of
from nanlab.history import Flush
from nanlab.rules._origin import place_of
from nanlab.rules._rule import Finding, Fix, rule
from nanlab.trace import Trace

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
    """One flush for each parameter that lost something, with the steps of all: in each step one
    operation is to blame."""
    counts: dict[str, int] = {}
    for flush in flushes:
        counts[flush.name] = counts.get(flush.name, 0) + flush.count
    first = min(flushes, key=lambda f: f.first)
    return [replace(first, name=name, count=count) for name, count in counts.items()]


def always(trace: Trace, flushes: Sequence[Flush]) -> bool:
    """Whether something was lost in each of several steps, the first among them: it is not that a
    fit has converged."""
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
        f"{loss['op']} flushes {loss['share']:.0%} of the {loss['numel']:,} values to zero in"
        f" {_format(loss).name}"
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
    example="""
        x = torch.tensor([1.0, 2.0, 4.0, 0.0], dtype=torch.float16)
        var = x.var()
        y = (x - x.mean()) * torch.rsqrt(var + 1e-9)  # here
    """,
    fix="""
        x = torch.tensor([1.0, 2.0, 4.0, 0.0], dtype=torch.float16)
        var = x.var()
        y = (x - x.mean()) * torch.rsqrt(var + 1e-5)
    """,
)
def eps_underflow(trace: Trace) -> Iterator[Finding]:
    """An epsilon that the dtype rounds to zero does nothing: what it should prevent is only waiting
    for the value that needs it."""
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
    example="""
        w = torch.ones(2, requires_grad=True)
        mask = torch.full((70000,), 1.0, dtype=torch.float16)
        for i in range(2):
            count = mask.sum()  # here
            ((w * 2).sum() / count).backward()
    """,
    fix="""
        w = torch.ones(2, requires_grad=True)
        mask = torch.full((70000,), 1.0, dtype=torch.float16)
        for i in range(2):
            count = mask.sum(dtype=torch.float32)
            ((w * 2).sum() / count).backward()
    """,
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
        yield Finding(
            cause="dtype-overflow",
            severity="error" if harmful else "warning",
            title=(
                f"{first.at.op} overflows {first.at.dtype} and is divided by: the whole gradient of"
                f" {shown} is 0"
            ),
            explanation=dtype_overflow_.explanation,
            step=trace.recording.step_of(first.first),
            symptom="silent-underflow",
            fixes=(
                [Fix("count in float32", "mask.sum(dtype=torch.float32)")]
                if first.at.op == "sum"
                else []
            ),
            harmful=harmful,
            **where(trace.recording, first.at),
        )
