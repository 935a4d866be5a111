"""Sinks of programs without gradients: outputs, parameters, carried state, rejected values."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from nanlab.trace.escapes import Failure
from nanlab.trace.op import walk
from nanlab.trace.recording import MOST_SINKS, Recording, Sink

STALLED = 3  # steps without a backward pass after which a training has come to a halt

# Where a value does harm in a program without gradients: in what its modules return, in the
# parameters it sets, in what it carries on.


class ForwardSinks:
    """Collects the sinks of a program while it has not run backward yet; of no use once it has."""

    def __init__(
        self,
        recording: Recording,
        model: nn.Module | None,
        source: Callable[[torch.Tensor], int],
        know: Callable[[int, torch.Tensor], int],
    ) -> None:
        self._recording, self._model = recording, model
        # the row of a tensor; with statistics, where these were put off
        self._source: Callable[[torch.Tensor], int] = lambda tensor: know(source(tensor), tensor)
        self._outputs: list[int] = []
        self._parameters: dict[str, Sink] = {}

    def returned(self, output: Any) -> None:
        """Note the bad outputs of an outermost module that returned."""
        if self._recording.passes or len(self._outputs) >= MOST_SINKS:
            return
        several = output.values() if isinstance(output, dict) else output
        for value in several if isinstance(output, (tuple, list, dict)) else [output]:
            if isinstance(value, torch.Tensor) and self._recording.may_be_bad(
                row := self._source(value)
            ):
                self._outputs.append(row)

    def step_ended(self) -> None:
        """Check each parameter: to give it new memory (``p.data = ...``) is no operation."""
        recording = self._recording
        if self._model is None or recording.passes or not recording.end:
            return
        for name, parameter in self._model.named_parameters():
            if name not in self._parameters and not nn.parameter.is_lazy(parameter):
                row = self._source(parameter)
                if row >= 0 and recording.may_be_bad(row):
                    self._parameters[name] = Sink("parameter", row, recording.end - 1, name)

    def sinks(self, idle: bool) -> list[Sink]:
        """All sinks in order of time. idle: no module was called either."""
        found = [Sink("output", position, position) for position in self._outputs]
        found += [
            sink for sink in self._parameters.values() if sink.position in self._recording.bad
        ]
        if idle:
            found += _carried_nan(self._recording)
        return sorted(found, key=lambda sink: sink.step_position)


def _carried_nan(recording: Recording) -> list[Sink]:
    """The sink where a NaN was first carried over to a later step, without gradients."""
    for position in sorted(position for position in recording.bad if position >= 0):
        if _has_nan(recording, position) and any(
            _has_nan(recording, s) for s in _brought(recording, position)
        ):
            return [_first_brought(recording, position)]
    return []


def stalled(recording: Recording) -> list[Sink]:
    """The sink where a NaN was first carried over, if the program still builds graphs of it but
    goes backward no more: it leaves out each batch with a bad loss, and by then every loss is
    bad."""
    last = recording.passes[-1].position
    if recording.step_of(recording.end - 1) - recording.step_of(last) < STALLED:
        return []
    if not any(p >= recording.starts[-1] and recording.at(p).node >= 0 for p in recording.bad):
        return []  # of an evaluation, say
    return [sink for sink in _carried_nan(recording) if sink.step_position > last]


def _brought(recording: Recording, position: int) -> list[int]:
    """The bad operands that stem from an earlier step."""
    start = recording.starts[recording.step_of(position)]
    return [
        source
        for source in recording.parents(position)
        if 0 <= source < start and source in recording.bad
    ]


def _first_brought(recording: Recording, position: int) -> Sink:
    """The first row behind this one that read a bad value of an earlier step, as a sink."""
    bad = walk(
        [position], lambda at: (p for p in recording.parents(at) if p >= 0 and p in recording.bad)
    )
    first = min((at for at in bad if _brought(recording, at)), default=position)
    return Sink("state", _brought(recording, first)[0], first)


def _has_nan(recording: Recording, position: int) -> bool:
    stats = recording.stats(position) if position in recording.bad else None
    return stats is not None and stats.nan > 0


# A value that ended the program: somebody looked at it, found it bad, and raised.

# rows before the end in which the value of a test counts that the message does not name
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
    """Note as a symptom the bad value that ended the program; a symptom that is there
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
    """Note the last bad row as the symptom, where anomaly detection stopped before a parameter."""
    if "nan values in its" not in str(error):
        return False
    bad = [
        p for p in recording.bad if p >= 0 and (row := recording.op(p)) is not None and row.backward
    ]
    if bad:
        recording.sinks.append(Sink("gradient", max(bad), recording.end - 1))
    return True


def is_refusal(error: BaseException) -> bool:
    """Whether an exception may be about a value: no interrupt, no successful exit."""
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
    """The bad row among those that the program looked at last, in the running step.

    said: the exception's message speaks of a value. Otherwise the look, a number or a test, must be
    the last thing that the program did.
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


# Updates that write to no parameter: new tensors are made of the gradients, and the next
# iteration computes with them.


def updates_apart(recording: Recording) -> bool:
    """Whether the last graph reads results of the gradients before: then iterations are steps."""
    if len(recording.passes) < 2:
        return False
    before, now = (run.position for run in recording.passes[-2:])
    start = recording.starts[recording.step_of(now)]
    return any(
        before <= source < start for at in range(start, now) for source in recording.parents(at)
    )
