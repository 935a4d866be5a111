"""What an exception means, with the evidence of the watch it was raised in."""

from __future__ import annotations

import sys

from nanlab.capture.exception_frames import ended, failure_of, recording_of
from nanlab.capture.watching import running
from nanlab.explanations import devices, graph, messages, operands
from nanlab.explanations.changes import with_change
from nanlab.explanations.explanation import Case, Explanation, Meaning, advice, meanings_of, means
from nanlab.explanations.trial import Explained
from nanlab.trace.escapes import Failure
from nanlab.trace.mode import aside
from nanlab.trace.recording import Recording

TOPICS = (messages, graph, devices, operands)
MEANINGS: list[Meaning] = [one for topic in TOPICS for one in meanings_of(topic)]


@aside()
def explain(exc: BaseException | None = None) -> Explanation | None:
    """What an exception means, and what to write instead; None if it is not one that nanlab knows.

    exc: default: the exception that is being handled, else the one that the interpreter showed
    last, else the one that ended the last watch. Where it was raised inside of a watch the evidence
    is the recorded run, else its traceback and its message. Never raises.
    """
    if (passes := Explained.passes) is not None:  # this asks of a program that is run again
        asked = exc or sys.exception()
        if asked is not None and passes(asked):
            raise Explained(asked)
        return None
    try:
        failure, recording, error = _known(exc)
    except Exception:
        return None
    return explain_failure(failure, recording, error) if failure is not None else None


def explain_failure(
    failure: Failure, recording: Recording | None, error: BaseException | None = None
) -> Explanation | None:
    """The explanation of the first meaning that knows the message, with the edit that was tried;
    that edit alone where none knows it. A meaning that fails is passed.

    error: the exception itself, whose frames say what the operands were.
    """
    found = _meaning(failure, recording)
    try:
        return with_change(found, failure, error)
    except Exception:
        return found


def _meaning(failure: Failure, recording: Recording | None) -> Explanation | None:
    for meaning in MEANINGS:
        match = meaning.pattern.search(failure.text)
        if match is None:
            continue
        for evidence in (recording, None):
            try:
                found = meaning.judge(Case(failure, match, evidence))
            except Exception:
                continue
            if found is not None:
                return found
    return None


def _known(
    exc: BaseException | None,
) -> tuple[Failure | None, Recording | None, BaseException | None]:
    """The exception as data, the recording of the watch that it belongs to, and itself."""
    import nanlab

    last = nanlab.last.recording if nanlab.last is not None else None
    if exc is None:
        handled = sys.exception()
        exc = handled or getattr(sys, "last_exc", None) or getattr(sys, "last_value", None)
    if exc is None:
        return (last.escapes.failure, last, None) if last is not None else (None, None, None)
    if last is not None and ended(exc, last):
        return last.escapes.failure or failure_of(exc), last, exc
    return failure_of(exc), recording_of(exc) or running(), exc


__all__ = [
    "MEANINGS",
    "Case",
    "Explanation",
    "Meaning",
    "advice",
    "explain",
    "explain_failure",
    "means",
]
