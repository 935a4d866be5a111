"""Functions of the program that are one training step by name, such as ``train_step``: each call of one is a step."""

from __future__ import annotations

import re
import sys
from dataclasses import dataclass, field
from inspect import CO_ASYNC_GENERATOR, CO_GENERATOR
from types import CodeType, FrameType

from nanlab.capture.source import is_user

_NAME = re.compile(
    r"_*(?:(?:run|do|one|single|perform)_)?(?:train(?:ing)?_?(?:one_|single_|on_)?(?:step|batch|iter(?:ation)?)|step)"
)


class _Mark:
    """Put into a frame's ``f_trace`` to know the call again: only a debugger looks there, and this tells it nothing."""

    def __call__(self, frame: FrameType, event: str, arg: object) -> None:
        return None


_OUTSIDE = _Mark()  # of a call that was running when the watch began


@dataclass
class StepFunction:
    """What is known of a function that is named like a training step."""

    began: list[int] = field(
        default_factory=list
    )  # positions at which those of its calls began that are a step of their own
    first: int = -1  # position at which its first call began
    last: int = -1  # and its last
    sequence: int = 0  # autograd sequence number at that moment
    calls: int = 0
    backward: bool = False  # whether a graph made in the last call went backward in it
    module: bool = False  # whether a module was called in it
    sure: bool = False  # a call held the backward pass and the optimizer's step
    chosen: bool = False
    refused: bool = False  # training goes on outside of it: the step of an environment, or of a schedule


class StepCalls:
    """Finds the running call of a function that is named like a training step; of several the outermost counts."""

    def __init__(self) -> None:
        self._mark = _Mark()
        self._named: dict[int, StepFunction | None] = {}
        self._codes: list[CodeType] = []  # keeps the code objects alive, so that their id() stays theirs
        self.functions: list[StepFunction] = []

    def start(self, frame: FrameType | None) -> None:
        """The calls that are running already are no steps of what is watched."""
        while frame is not None:
            if _NAME.fullmatch(frame.f_code.co_name) and (frame.f_trace is None or isinstance(frame.f_trace, _Mark)):
                frame.f_trace = _OUTSIDE
            frame = frame.f_back

    def running(self, frame: FrameType | None) -> tuple[StepFunction | None, FrameType | None]:
        """The outermost step function that is running, and its frame."""
        found, where = None, None
        while frame is not None:
            code = frame.f_code
            function = self._named[id(code)] if id(code) in self._named else self._learn(frame)
            if function is not None and not function.refused and frame.f_trace is not _OUTSIDE:
                found, where = function, frame
            frame = frame.f_back
        return found, where

    def seen(self, frame: FrameType | None) -> StepFunction | None:
        """The step function that is running, where its call was noticed."""
        function, where = self.running(frame)
        return function if self.knows(where) else None

    def knows(self, frame: FrameType | None) -> bool:
        """Whether this call was noticed; while a debugger is at work none is."""
        return frame is not None and frame.f_trace is self._mark

    def is_new(self, frame: FrameType) -> bool:
        """Whether this call is noticed for the first time."""
        if frame.f_trace is self._mark or sys.gettrace() is not None:
            return False
        if frame.f_trace is not None and not isinstance(frame.f_trace, _Mark):
            return False  # a debugger is at work
        frame.f_trace = self._mark
        return True

    def _learn(self, frame: FrameType) -> StepFunction | None:
        code, function = frame.f_code, None
        caller = frame.f_back.f_code.co_filename if frame.f_back is not None else ""
        wrapped = caller.replace("\\", "/").endswith("torch/optim/optimizer.py")  # the step of an optimizer
        resumed = code.co_flags & (CO_GENERATOR | CO_ASYNC_GENERATOR)  # the loop may be inside: one call for all steps
        if _NAME.fullmatch(code.co_name) and is_user(frame) and not wrapped and not resumed:
            function = StepFunction()
            self.functions.append(function)
        self._codes.append(code)
        self._named[id(code)] = function
        return function
