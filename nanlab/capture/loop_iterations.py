"""The turns of the program's loops as training steps: which are steps of their own, and which part of one."""

from __future__ import annotations

from nanlab.capture.loops import Loop, Loops
from nanlab.capture.nesting import Nesting, Segment
from nanlab.capture.source import Path
from nanlab.capture.step_functions import StepFunctions


class LoopIterations(StepFunctions):
    """The part of the clock that knows loops within loops, and what comes after one."""

    def __init__(self) -> None:
        super().__init__()
        self._tentative: list[
            tuple[int, int, bool]
        ] = []  # (index into starts, autograd sequence number, in a no_grad loop)
        self._loops, self._nesting = Loops(), Nesting()
        self._outside: Path | None = None  # where the program stood when it had left the loop whose turns are steps
        self.checked: set[int] = set()  # lines that were found to stand later in the loop than the last event
        self.optimizer_seen = False

    def _leaves(self, now: Path) -> bool:
        """Whether the program has left the loop whose turns are steps."""
        if not self.optimizer_seen:
            return False
        self._nesting.keep(self.starts)
        last = self._nesting.last
        return last.loop is not None and not last.left and last.start == self.starts[-1] and not last.loop.holds(now)

    def _after_loop(self, now: Path, position: int) -> bool:
        """Another step begins with what comes after the loop, unless nothing is trained there."""
        self._outside = now
        self._nesting.segments.append(Segment(position, self._nesting.last.loop, left=True))
        self._settle()
        self.checked.clear()
        self.starts.append(position)
        return True

    def _drop_idle_end(self) -> None:
        """What came after a loop was no step: an evaluation."""
        last = self._nesting.last
        if last.left and not last.trained and last.start == self.starts[-1]:
            self.starts.pop()
            self._nesting.keep(self.starts)

    def _drop_unbegun(self) -> None:
        """The last turn of a loop that never came to a module or a backward pass was no step: a loader that found its data exhausted."""
        last = self._nesting.last
        if self.backward_seen and not last.trained and self._called is None and 0 < last.start == self.starts[-1]:
            self.starts.pop()
            self._tentative = [kept for kept in self._tentative if kept[0] < len(self.starts)]

    def _join(self, loop: Loop | None, position: int) -> None:
        """A loop came round: what an inner loop took for steps is part of its turn."""
        self._nesting.keep(self.starts)
        self._drop_idle_end()
        for wrong in self._nesting.turned(loop, position):
            self.starts.remove(wrong)
