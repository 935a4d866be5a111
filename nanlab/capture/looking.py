"""What is looked for when a training step has ended."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from nanlab.capture.editing import note_edits
from nanlab.capture.following import StepRows, follow
from nanlab.capture.scaling import note_clipping, note_factors, still_scaled
from nanlab.capture.silent import note_flushes
from nanlab.capture.standstills import note_standstills
from nanlab.history import History, ParameterStep
from nanlab.trace.recording import Recording


@dataclass(frozen=True, slots=True)
class Written:
    """What became of the parameters and buffers in a step; each by its number."""

    gradients: dict[int, int]  # row of the gradient
    by_hand: list[tuple[int, int]]  # (number, row) of each write outside of an optimizer
    all: list[tuple[int, int]]  # and of each write


class Looking:
    """Looks through each step: at once for misuse, and later, several steps at a time, for what grows or was lost.

    What is done for several steps in a row finds the processor's caches warm, and takes a third of the time.
    """

    def __init__(self, recording: Recording, history: History) -> None:
        self._recording, self._history = recording, history
        self._waiting: list[tuple[int, int, Written, list[ParameterStep]]] = []  # steps: begin and end of their rows
        self._end = 0  # position up to which steps were looked through
        self.failed: Callable[[Exception], None] = lambda error: None

    def through(self, written: Written) -> None:
        """Look through the step that ends here."""
        recording, history = self._recording, self._history
        start, self._end = self._end, recording.end
        if start == recording.end:
            return
        rows = StepRows(recording, start, recording.end)
        steps = []
        for step in reversed(history.parameters):
            if step.position < rows.start:
                break
            steps.append(step)
        self._waiting.append((rows.start, rows.end, written, steps))
        note_factors(rows, history)
        still_scaled(rows, history, steps)
        note_edits(rows, history, steps)
        recording.sinks.extend(note_clipping(rows, history, steps))

    def catch_up(self) -> None:
        """Follow the series, and look for what was lost, in the steps that wait for it."""
        waiting, self._waiting = self._waiting, []
        try:
            for start, end, written, steps in waiting:
                rows = StepRows(self._recording, start, end)
                follow(self._history.series, rows, written.all)
                note_flushes(rows, self._history, written.gradients, written.by_hand)
                note_standstills(rows, self._history, steps, written.by_hand)
        except Exception as error:
            self.failed(error)
