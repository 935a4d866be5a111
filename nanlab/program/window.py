"""The recorded calls of one training step."""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass

from nanlab.errors import NotReplayable, TypeMismatchError, UsageError
from nanlab.program.handover import complete
from nanlab.trace.program import Segment
from nanlab.trace.recording import Recording


@dataclass(frozen=True)
class Window:
    """The segments of a step, and which of their calls belong to it."""

    recording: Recording
    step: int
    start: int
    end: int
    segments: list[Segment]

    def find(self, position: int) -> tuple[int, int, int]:
        """(segment, index of the call, number of its result) of a row."""
        op = self.recording.op(position)
        if op is None:
            raise UsageError(
                f"no row at position {position}; trace.ops.position lists those at hand"
            )
        first = op.call
        for at, segment in enumerate(self.segments):
            index = bisect_right(segment.calls, first, key=lambda call: call.position) - 1
            if index >= 0 and segment.calls[index].position == first:
                return at, index, op.output
        raise NotReplayable(f"the call of row {position} was not recorded")


def window(recording: Recording, step: int | None = None) -> Window:
    """The segments of a training step; of the failing one by default, else the last. Raises
    NotReplayable."""
    program = recording.program
    if program.reason:
        raise NotReplayable(f"the steps were not recorded: {program.reason}")
    if step is None:
        step = len(recording.starts) - 1
        while step and recording.starts[step] >= recording.end:
            step -= 1
    if isinstance(step, bool) or not isinstance(step, int):
        raise TypeMismatchError(f"expected the number of a training step, got {step!r}")
    if not 0 <= step < len(recording.starts):
        raise UsageError(f"no step {step}; the watch saw steps 0 to {len(recording.starts) - 1}")
    start = recording.starts[step]
    end = recording.starts[step + 1] if step + 1 < len(recording.starts) else 1 << 62
    if start < program.forgotten:
        raise NotReplayable(
            f"step {step} is no longer kept: the last steps and those of the first faults are; try"
            f" keep={len(recording.starts) - step}"
        )
    segments = program.between(start, end)
    if not segments:
        raise NotReplayable("nothing was recorded in that step")
    complete(program, segments)
    return Window(recording, step, start, end, segments)
