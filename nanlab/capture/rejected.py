"""A value that ended the program: somebody looked at it, found it bad, and raised."""

from __future__ import annotations

import re

import torch

from nanlab.trace.failure import Failure
from nanlab.trace.recording import Recording, Sink

# rows before the end in which the value of a test counts of which the message says nothing
NEAR = 8
FAR = 64  # rows in which a value does that the message speaks of
# What is said of a value: by torch's operators, by torch.distributions, by programs.
_VALUE = r"(?i)\bnans?\b|\binfs?\b|infinit|(?<!de)finite"
_BY_OPERATORS = re.compile(
    f"{_VALUE}|between 0 and 1|singular|converge|positive-definite|could not be completed"
)
_BY_PROGRAMS = re.compile(f"{_VALUE}|diverg|satisfy the constraint|within the support")


def note_rejected_value(
    recording: Recording, error: BaseException, failure: Failure | None
) -> None:
    """Note as a symptom the bad value because of which the program ended; a symptom that is there
    already says more.

    Such as a distribution that refuses NaN parameters, an assertion that the loss is finite,
    ``sys.exit(1)`` after such a test.
    """
    if _interrupted_gradient(recording, error) or not is_refusal(error):
        return
    position = _operand(recording, error, failure)
    if position is None:
        position = _looked_at(recording, _said(error))
    if position is not None:
        recording.sinks.append(Sink("output", position, max(recording.end - 1, 0)))


def _interrupted_gradient(recording: Recording, error: BaseException) -> bool:
    """Anomaly detection stops before the NaN reaches a parameter: the last bad row is the symptom
    then."""
    if "nan values in its" not in str(error):
        return False
    bad = [
        p for p in recording.bad if p >= 0 and (row := recording.op(p)) is not None and row.backward
    ]
    if bad:
        recording.sinks.append(Sink("gradient", max(bad), recording.end - 1))
    return True


def is_refusal(error: BaseException) -> bool:
    """Whether an exception may be about a value; an interrupt, or an exit that reports success, is
    not."""
    if isinstance(error, SystemExit):
        return error.code not in (None, 0)
    if isinstance(error, (AssertionError, ArithmeticError)):
        return True
    return isinstance(error, Exception) and _said(error)


def _said(error: BaseException) -> bool:
    """Whether the message of an exception speaks of a value."""
    return bool(_BY_PROGRAMS.search(str(error)) or _BY_OPERATORS.search(str(error)))


def _operand(recording: Recording, error: BaseException, failure: Failure | None) -> int | None:
    """The bad operand of the operation that raised."""
    if failure is None or not _BY_OPERATORS.search(str(error)):
        return None
    sources = [o.source for o in failure.operands if o.source is not None]
    return next((s for s in sources if s in recording.bad), None)


def _looked_at(recording: Recording, said: bool) -> int | None:
    """What was bad of the values that the program looked at last, in the step that was running.

    said: the message speaks of it. Else the look must be the last thing that the program did: it
    read a number, or made a test.
    """
    first = max(recording.starts[-1], recording.end - (FAR if said else NEAR))
    at, read = recording.escapes.last_read
    if read in recording.bad and at >= (first if said else recording.end):
        return read
    last = recording.op(recording.end - 1) if recording.end > first else None
    if not said and (last is None or last.dtype is not torch.bool):
        return None
    for position in range(recording.end - 1, first - 1, -1):
        bad = [p for p in recording.parents(position) if p in recording.bad]
        if bad:
            return bad[0]
    return None
