"""Overflows in half precision that a quotient hides: what is divided by infinity is 0."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import takewhile

import numpy as np

from nanlab.analysis.training import where
from nanlab.findings.fault import number
from nanlab.findings.rule import Finding, rule
from nanlab.formats import HALF_PRECISION
from nanlab.operators import having, spoken, with_forms
from nanlab.program.evidence import zeros_of_overflow
from nanlab.topics.flushes import COSTLY, FULL_RANGE, IN_FLOAT32, lasts
from nanlab.trace import Trace
from nanlab.trace.frames import StepRows
from nanlab.trace.history import Flush, place_at
from nanlab.trace.op import BACKWARD, FORWARD, HEALED
from nanlab.trace.recording import Recording

_QUOTIENTS = with_forms("div", in_place=True)
_OF_ONE = having("inverts", in_place=True) | with_forms("pow", in_place=True)


def note_hidden_overflows(rows: StepRows) -> None:
    """Add to the history the quotients of a closed step that an overflow made 0 in part."""
    recording = rows.recording
    latest = takewhile(lambda position: position >= rows.start, reversed(recording.status))
    healed = sorted(p for p in latest if recording.status[p] == HEALED and p < rows.end)
    if not healed:
        return
    differentiated = set(rows.columns.node[rows.columns.phase == BACKWARD].tolist()) - {-1}
    for position in healed:
        row = recording.at(position)
        if row.phase != FORWARD or row.node not in differentiated:
            continue
        origin, zeros = _overflow_behind(recording, position), _zeros_made(recording, position)
        place = place_at(recording, origin) if origin >= 0 and zeros else None
        if place is None:
            continue
        key = (place.op, place.line, place.module, "part", "")
        known = rows.history.flushes.get(key)
        if known is None:
            rows.history.flushes[key] = Flush(
                place, "part", "", zeros, np.inf, position, rows.end, overflow=True
            )
        else:
            known.count += known.last != rows.end
            known.last = rows.end


def _zeros_made(recording: Recording, position: int) -> int:
    """How many elements of a quotient are 0 that are not 0 in its dividend."""
    read, made = recording.parents(position), recording.stats(position)
    if recording.at(position).name not in _QUOTIENTS:
        return int(made.zero) if recording.at(position).name in _OF_ONE else 0
    above = recording.stats(read[0]) if len(read) == 2 else None
    if above is None or not above.is_finite or not above.numel:
        return 0
    return int(made.zero - above.zero * (made.numel // above.numel))


def _overflow_behind(recording: Recording, position: int) -> int:
    """The row of half precision in which the infinity of a divisor was born; -1: another one."""
    at = next(iter(recording.parents(position)[-1:]), -1)
    # each row is later than its operands
    while at in recording.bad and (row := recording.at(at)) and not row.born:
        at = next((p for p in recording.parents(at) if p in recording.bad), -1)
    row = recording.at(at)
    if at not in recording.bad or not row or not row.born or row.phase != FORWARD:
        return -1
    return at if row.dtype in HALF_PRECISION and not row.stats.nan else -1


@rule(
    "error",
    family="training",
    events=("training.flushes",),
    example="""
        net = nn.Linear(8, 8).half()
        for i in range(2):
            z = net(torch.tensor([[1.0], [1000.0]], dtype=torch.float16).expand(2, 8))
            energy = (z * z).sum(-1, keepdim=True, dtype=torch.float16)  # here
            (z / energy.sqrt()).square().sum().backward()
    """,
    fix={"(z * z).sum(-1, keepdim=True, dtype=torch.float16)": "z.float().square().sum(-1, True)"},
)
def dtype_overflow(trace: Trace) -> Iterator[Finding]:
    """A norm or variance overflows in half precision for some samples, and what is divided by it
    becomes 0: these samples are lost.

    No infinity remains in the loss. Compute the divisor in float32.
    """
    flushes = trace.recording.training.flushes.values()
    told = {flush.at.line for flush in flushes if flush.overflow and flush.cost in COSTLY}
    for flush in flushes:
        if flush.cost != "part" or flush.at.line in told:
            continue
        lost = zeros_of_overflow(trace.recording, flush.at.position, flush.first)
        if lost is None:
            continue
        op, half = spoken(trace.recording.at(lost.position).name), flush.at.dtype
        yield dtype_overflow.finding(
            f"{spoken(flush.at.op)} overflows {half} and becomes a divisor: {lost.count:,} of"
            f" {lost.numel:,} values of {op} are 0, in float32 up to {number(lost.largest)}",
            severity="error" if lasts(trace, [flush]) else "warning",
            step=trace.recording.step_of(flush.first),
            symptom="silent-underflow",
            fixes=[IN_FLOAT32, *([FULL_RANGE] if half == "float16" else [])],
            **where(trace.recording, flush.at),
        )
