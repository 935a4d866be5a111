"""The calls of the program's own step function as training steps."""

from __future__ import annotations

from collections.abc import Callable
from types import FrameType

from nanlab.capture.source import Path
from nanlab.capture.step_calls import StepCalls, StepFunction


class StepFunctions:
    """The part of the clock that knows functions named like a training step, such as ``train_step``.

    A name alone proves nothing: an environment and a schedule have a ``step`` too. The calls of a function are taken for the steps once one held
    a backward pass of what it computed, or called a module in a program that has no backward pass; what loops inside of them is part of
    them, and a call is a step though the optimizer steps in every fourth only: the program counts its calls. It is refused if a backward
    pass runs, or an optimizer steps, outside of it.
    """

    _complete: Path | None
    _called: Path | None
    _outside: Path | None
    backward_seen: bool
    _settle: Callable[[], None]

    def __init__(self) -> None:
        self.starts: list[int] = [0]  # position at which each step begins
        self.calls = StepCalls()
        self.openers: set[int] = set()  # lines with which a call of a step function began
        self.idle = True  # no module was called yet and no gradient asked for
        self._inside: dict[int, StepFunction] = {}  # boundaries that a loop made inside of a step function

    def _stepped_inside(self, frame: FrameType | None) -> None:
        """An optimizer stepped."""
        function = self.calls.seen(frame)
        if function is None:
            self._refuse(lambda other: not other.sure)
        elif function.backward:
            function.sure = True
            self._choose(function)

    def _module_inside(self, frame: FrameType | None) -> None:
        """A module was called."""
        if (function := self.calls.seen(frame)) is not None:
            function.module = True

    def _backward_inside(self, frame: FrameType | None, oldest: int) -> bool:
        """Gradients were asked for; whether they are of what the running call of a step function computed."""
        function = self.calls.seen(frame)
        if function is None or oldest < function.sequence:
            return False
        function.backward = True
        return True

    def _call_began(self, function: StepFunction, position: int, sequence: int) -> bool:
        """A step function was called; whether a step begins with it: not if its turn of the loop has begun one already."""
        function.calls += 1
        if function.calls == 1:
            function.first = position
            own = self._complete is not None and len(self.starts) > 1
        else:
            own = self.starts[-1] <= function.last or self.starts[-1] in self._inside
            if function.backward or (function.module and not self.backward_seen):
                self._choose(function)
        if own and not function.sure:
            function.began.append(position)
        function.last, function.sequence, function.backward, function.module = position, sequence, False, False
        return own

    def _begin(self, position: int) -> bool:
        """A step begins, and no doubt of it."""
        self._settle()
        self._complete = self._called = self._outside = None
        if position <= self.starts[-1]:
            return False
        self.starts.append(position)
        return True

    def _choose(self, function: StepFunction) -> None:
        """The calls of this function are the steps."""
        if function.chosen:
            return
        function.chosen = True
        kept = {start for start in self.starts if self._inside.get(start) is not function}
        self.starts[:] = sorted(kept.union(function.began))
        self._inside.clear()
        self._settle()

    def _refuse(self, which: Callable[[StepFunction], bool]) -> None:
        """Training goes on outside of these functions."""
        for function in self.calls.functions:
            if function.calls and not function.refused and which(function):
                function.refused = True
                if function.chosen:
                    wrong = set(function.began)
                    self.starts[:] = [start for start in self.starts if not start or start not in wrong]
                    self._settle()

    @property
    def first_call(self) -> int:
        """Position at which a step function was first called; 0 where there is none."""
        return min((function.first for function in self.calls.functions if function.chosen), default=0)

    def finished(self) -> None:
        """The watch ends: a program that never trained has as many steps as its step function has calls."""
        for function in self.calls.functions:
            if self.idle and function.calls > 1 and not function.refused:
                self._choose(function)
