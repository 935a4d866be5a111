"""A value that ended the program: somebody looked at it, found it bad, and raised."""

from __future__ import annotations

import re

from nanlab.trace.failure import Failure
from nanlab.trace.recording import BACKWARD, OP, PHASE, Recording, Sink

NEAR = 8  # rows before the end in which a look counts that nothing in the message speaks of
FAR = 64  # rows in which one does
# What is said of a value: by torch's operators, by torch.distributions, by programs.
_BY_OPERATORS = re.compile(
    r"(?i)\bnan\b|\binf|finite|between 0 and 1|singular|converge|positive-definite|could not be completed"
)
_BY_PROGRAMS = re.compile(r"(?i)\bnan|\binf\b|infinit|finite|diverg|satisfy the constraint|within the support")
_LOOKS = frozenset(
    "isnan isinf isfinite isposinf isneginf eq ne ge gt le lt all any logical_and logical_or detach alias abs sum max min "
    "aminmax _to_copy logical_not bitwise_not bitwise_and mul".split()
)  # isfinite is a comparison and a product to the dispatcher


def note_refused_value(recording: Recording, error: BaseException, failure: Failure | None) -> None:
    """Note as a symptom the bad value because of which the program ended; a symptom that is there already says more.

    Such as a distribution that refuses NaN parameters, an assertion that the loss is finite, ``sys.exit(1)`` after such a test.
    """
    if _interrupted_gradient(recording, error) or not _is_refusal(error):
        return
    position = _operand(recording, error, failure)
    if position is None:
        position = _looked_at(recording, FAR if _BY_PROGRAMS.search(str(error)) else NEAR, str(error))
    if position is not None:
        recording.sinks.append(Sink("output", position, max(recording.end - 1, 0)))


def _interrupted_gradient(recording: Recording, error: BaseException) -> bool:
    """Anomaly detection stops before the NaN reaches a parameter: the last bad row is the symptom then."""
    if "nan values in its" not in str(error):
        return False
    bad = [p for p in recording.bad if p >= 0 and (row := recording.row(p)) is not None and row[PHASE] == BACKWARD]
    if bad:
        recording.sinks.append(Sink("gradient", max(bad), recording.end - 1))
    return True


def _is_refusal(error: BaseException) -> bool:
    """Whether an exception may be about a value; an interrupt, or an exit that reports success, is not."""
    if isinstance(error, SystemExit):
        return error.code not in (None, 0)
    if isinstance(error, (AssertionError, ArithmeticError)):
        return True
    text = str(error)
    return isinstance(error, Exception) and bool(_BY_PROGRAMS.search(text) or _BY_OPERATORS.search(text))


def _operand(recording: Recording, error: BaseException, failure: Failure | None) -> int | None:
    """The bad operand of the operation that raised."""
    if failure is None or not _BY_OPERATORS.search(str(error)):
        return None
    sources = [o.source for o in failure.operands if o.source is not None]
    return next((s for s in sources if s in recording.bad), None)


def _looked_at(recording: Recording, rows: int, text: str) -> int | None:
    """What was bad of the values that the program looked at last, in the step that was running."""
    said = bool(_BY_PROGRAMS.search(text))
    first = max(recording.starts[-1], recording.end - rows)
    for read in recording.escapes.reads_from(first):
        if read in recording.bad:
            return read
    for position in range(recording.end - 1, first - 1, -1):
        row = recording.row(position)
        bad = [p for p in recording.parents(position) if p in recording.bad]
        if row is None or not bad:
            continue
        return bad[0] if said or recording.ops.items[row[OP]] in _LOOKS else None
    return None
