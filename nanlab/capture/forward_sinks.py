"""Where a value does harm in a program without gradients: in what its modules return, in the
parameters it sets, in what it carries on."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from nanlab.trace.op import walk
from nanlab.trace.recording import MOST_SINKS, Recording, Sink


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
        """An outermost module returned."""
        if self._recording.passes or len(self._outputs) >= MOST_SINKS:
            return
        values = (
            output
            if isinstance(output, (tuple, list))
            else output.values()
            if isinstance(output, dict)
            else [output]
        )
        for value in values:
            if isinstance(value, torch.Tensor) and self._recording.may_be_bad(
                row := self._source(value)
            ):
                self._outputs.append(row)

    def step_ended(self) -> None:
        """A parameter that is given new memory (``p.data = ...``) is no operation: look at each."""
        recording = self._recording
        if self._model is None or recording.passes or not recording.end:
            return
        for name, parameter in self._model.named_parameters():
            if name not in self._parameters and not nn.parameter.is_lazy(parameter):
                row = self._source(parameter)
                if row >= 0 and recording.may_be_bad(row):
                    self._parameters[name] = Sink("parameter", row, recording.end - 1, name)

    def sinks(self, idle: bool) -> list[Sink]:
        """All of them, in order of time. idle: no module was called either."""
        found = [Sink("output", position, position) for position in self._outputs]
        found += [
            sink for sink in self._parameters.values() if sink.position in self._recording.bad
        ]
        if idle:
            found += _carried_nan(self._recording)
        return sorted(found, key=lambda sink: sink.step_position)


def _carried_nan(recording: Recording) -> list[Sink]:
    """Where a NaN that goes on from step to step was first carried over: an evolution strategy,
    expectation-maximisation by hand."""
    for position in sorted(position for position in recording.bad if position >= 0):
        if _has_nan(recording, position) and any(
            _has_nan(recording, s) for s in _brought(recording, position)
        ):
            return [_first_brought(recording, position)]
    return []


def _brought(recording: Recording, position: int) -> list[int]:
    """The bad operands that an earlier step left."""
    start = recording.starts[recording.step_of(position)]
    return [
        source
        for source in recording.parents(position)
        if 0 <= source < start and source in recording.bad
    ]


def _first_brought(recording: Recording, position: int) -> Sink:
    """The first row on the way to this one that read what an earlier step had left bad."""
    bad = walk(
        [position], lambda at: (p for p in recording.parents(at) if p >= 0 and p in recording.bad)
    )
    first = min((at for at in bad if _brought(recording, at)), default=position)
    return Sink("state", _brought(recording, first)[0], first)


def _has_nan(recording: Recording, position: int) -> bool:
    stats = recording.stats(position) if position in recording.bad else None
    return stats is not None and stats.nan > 0
