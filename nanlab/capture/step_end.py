"""What is looked for when a training step has ended."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable
from dataclasses import dataclass
from operator import attrgetter

from nanlab.capture.absorbed_updates import note_absorbed_updates
from nanlab.capture.dead_gradients import note_dead
from nanlab.capture.flushes import note_flushes
from nanlab.capture.gradient_edits import note_edits
from nanlab.capture.magnitudes import StepRows, follow
from nanlab.capture.scaler_order import note_clipping, note_factors, still_scaled
from nanlab.history import History, ParameterStep
from nanlab.trace.recording import Recording


@dataclass(frozen=True, slots=True)
class Written:
    """What became of the parameters and buffers in a step; each by its number."""

    gradients: dict[int, int]  # row of the gradient
    by_hand: list[tuple[int, int]]  # (number, row) of each write outside of an optimizer
    all: list[tuple[int, int]]  # and of each write

    def then(self, later: Written) -> Written:
        """What became of them in this part of a step and in the next."""
        return Written(
            self.gradients | later.gradients,
            [*self.by_hand, *later.by_hand],
            [*self.all, *later.all],
        )


class StepChecks:
    """Looks through each step: at once for misuse, and later, several steps at a time, for what
    grows or was lost.

    What is done for several steps in a row finds the processor's caches warm, and takes a third of
    the time.
    """

    def __init__(self, recording: Recording, history: History) -> None:
        self._recording, self._history = recording, history
        self._waiting: list[tuple[int, int, Written]] = []  # steps: begin and end of their rows
        self._end = 0  # position up to which steps were looked through
        self.failed: Callable[[Exception], None] = lambda error: None

    def run(self, written: Written) -> None:
        """Check the step that ends here."""
        recording, history = self._recording, self._history
        start, self._end = self._end, recording.end
        if start == recording.end:
            return
        rows = StepRows(recording, start, recording.end)
        steps = self._parameter_steps(rows.start, rows.end)
        note_factors(rows, history)
        still_scaled(rows, history, steps)
        note_edits(rows, history, steps)
        recording.sinks.extend(note_clipping(rows, history, steps))
        self._wait(rows.start, rows.end, written)

    def _is_summarised(self, start: int, end: int) -> bool:
        """Whether the rows between two positions have statistics."""
        recording = self._recording
        if recording.detail == "full":
            return True
        segments = recording.program.between(start, end)
        return bool(segments) and all(s.summarised >= len(s.calls) for s in segments)

    def _wait(self, start: int, end: int, written: Written) -> None:
        """Look on later. A step that seemed to end before, and then went on, is one with its
        rest."""
        began = next((s for s in reversed(self._recording.starts) if s < end), 0)
        while self._waiting and self._waiting[-1][0] >= began:
            start, _, before = self._waiting.pop()
            written = before.then(written)
        self._waiting.append((start, end, written))

    def _parameter_steps(self, start: int, end: int) -> list[ParameterStep]:
        """What became of each parameter between two positions, the last first."""
        steps = self._history.parameters
        first, last = (bisect_left(steps, at, key=attrgetter("position")) for at in (start, end))
        return steps[first:last][::-1]

    def catch_up(self) -> None:
        """Follow the series, and look for what was lost, in the steps that wait for it."""
        waiting, self._waiting = self._waiting, []
        try:
            for start, end, written in waiting:
                rows = StepRows(self._recording, start, end)
                follow(self._history.series, rows, written.all)
                if not self._is_summarised(rows.start, rows.end):
                    continue
                note_flushes(rows, self._history, written.gradients, written.by_hand)
                note_dead(rows, self._history, written.gradients)
                note_absorbed_updates(
                    rows, self._history, self._parameter_steps(start, end), written.by_hand
                )
        except Exception as error:
            self.failed(error)
