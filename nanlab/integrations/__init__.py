"""Callbacks for trainers: the guard or watch that they share."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from traceback import walk_tb
from types import FrameType
from typing import Any, Literal

from torch import nn

from nanlab.capture import watch
from nanlab.capture.state import Reached
from nanlab.errors import UsageError
from nanlab.guards.engine import Guard
from nanlab.guards.outcome import folder_of, report_of
from nanlab.guards.window import Turn, Window
from nanlab.trace import Trace

Mode = Literal["guard", "watch"]


class Training:
    """One run of a trainer under guard or watch.

    repeat: runs the step of a turn again. ended: called once at a fault; the trainer then ends by
    itself.
    """

    def __init__(
        self,
        mode: Mode,
        save: str | Path | None,
        repeat: Callable[[Turn], object],
        ended: Callable[[], object],
    ) -> None:
        if mode not in ("guard", "watch"):
            raise UsageError(f'mode must be "guard" or "watch", got {mode!r}')
        self.mode, self.save, self.repeat, self.ended = mode, folder_of(save), repeat, ended
        self.trace: Trace | None = None  # of the fault
        self.guard: Guard | None = None
        self._watching: watch | None = None
        self._model: nn.Module | None = None

    @property
    def is_stopped(self) -> bool:
        """Whether a fault was found, so that no optimizer may step any more."""
        return self.trace is not None

    def start(self, model: nn.Module) -> None:
        """Begin the training."""
        self._model = model
        if self.mode == "guard":
            self.guard = Guard(model, ended=self._fault, looks=False)
            self.guard.start()
            return
        self._watching = watch(model)
        self._watching.announces = False
        self._watching.stopping = lambda stop: self._watch_stopped()
        self._watching.__enter__()

    def stop(self) -> None:
        """End the training, however it ended."""
        if self.guard is not None:
            self.guard.stop()
        watching, self._watching = self._watching, None
        if watching is not None:
            watching.__exit__(None, None, None)
            if self.trace is None and watching.trace.culprit is not None:
                self.trace = watching.trace
            if self.trace is not None:
                self._tell(self.trace)

    def raised(self, error: BaseException) -> None:
        """Examine an exception that ended the training, in case a bad value caused it."""
        if self.guard is not None and not self.is_stopped:
            self.guard.refused(error, [frame for frame, _ in walk_tb(error.__traceback__)])
            if self.guard.trace is not None:
                self.trace = self.guard.trace
                self._tell(self.trace)

    def begin(self, item: Any) -> None:
        """Begin a turn with these arguments of the step."""
        if self.guard is not None and not self.is_stopped:
            window = self.guard.begin("step", self._window)
            if window is not None:
                self.guard.turn(window, Turn({}, window.reached.random.take(), item))

    def _window(self) -> Window:
        assert self.guard is not None

        def repeat(window: Window, frame: FrameType | None, turns: Iterator[Turn]) -> None:
            for turn in turns:
                self.repeat(turn)

        return Window(
            self, repeat, lambda frame: True, Reached([self._model], self.guard.parameters)
        )

    def look(self, optimizer: Any) -> None:
        """Check gradients about to be used; after a fault, clear them."""
        optimizer = getattr(optimizer, "optimizer", None) or optimizer  # inside of a wrapper
        if self.guard is not None and not self.is_stopped:
            self.guard.optimizers.setdefault(id(optimizer), optimizer)
            self.guard.look(optimizer)
        if self.is_stopped:
            clear_gradients(optimizer)

    def _watch_stopped(self) -> None:
        assert self._watching is not None
        self.trace = self._watching.trace
        if self._model is not None:
            self._model.zero_grad()
        self.ended()

    def _fault(self, trace: Trace) -> None:
        self.trace = trace
        self._tell(trace)
        self.ended()

    def _tell(self, trace: Trace) -> None:
        report_of(trace, self.save)


def clear_gradients(optimizer: Any) -> None:
    """Clear the gradients of an optimizer, so that it cannot step."""
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            parameter.grad = None
