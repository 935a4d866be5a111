"""Code under torch.compile: runs eagerly while a watch is on, and compiled as before after it."""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

import torch

from nanlab.trace.recording import Recording

NOTE = (
    "the watch ran code under torch.compile eagerly, so that each of its operations is seen; after"
    " the watch it runs compiled as before"
)


class EagerCode:
    """Holds ``torch.compiler.set_stance("force_eager")``, and notes between which rows compiled
    code would have run.

    The stance is taken when torch's compiler is first imported, which takes seconds in a program
    that has no use for it. To see a call, ``_callback_from_stance`` and ``_maybe_set_eval_frame``
    of ``torch._dynamo.eval_frame`` are wrapped; they are private, and in torch 2.6 to 2.13 each
    call of compiled code runs the first as it begins and the second as it begins and ends.
    """

    def __init__(self, recording: Recording) -> None:
        self._recording = recording
        self._held: ExitStack | None = None
        # Calls that run: frame of the wrapper, position of the first row, whether it was seen to
        # begin.
        self._calls: list[list[Any]] = []

    def start(self) -> None:
        """Take the stance, now or when ``torch.compile`` is first called."""
        self._held = ExitStack()
        if "torch._dynamo.eval_frame" in sys.modules:
            self._hold()
            return
        compile_ = torch.compile

        def compile(*args: Any, **kwargs: Any) -> Any:
            torch.compile = compile_
            self._hold()
            return compile_(*args, **kwargs)

        self._held.callback(setattr, torch, "compile", compile_)
        torch.compile = compile

    def stop(self) -> None:
        """Give back the stance that the program had."""
        held, self._held = self._held, None
        self._calls.clear()
        if held is not None:
            held.close()

    def _hold(self) -> None:
        from torch._dynamo import eval_frame

        if self._held is None:
            return
        self._held.enter_context(torch.compiler.set_stance("force_eager"))
        for name, wrap in (
            ("_callback_from_stance", self._enters),
            ("_maybe_set_eval_frame", self._passes),
        ):
            original = getattr(eval_frame, name, None)
            if original is not None:
                self._held.callback(setattr, eval_frame, name, original)
                setattr(eval_frame, name, wrap(original))

    def _enters(self, original: Callable[[Any], Any]) -> Callable[[Any], Any]:
        def run(callback: Any) -> Any:
            if callback is not None and callback is not False:
                self._calls.append([sys._getframe(1), self._recording.end, False])
                if NOTE not in self._recording.notes:
                    self._recording.notes.append(NOTE)
            return original(callback)

        return run

    def _passes(self, original: Callable[[Any], Any]) -> Callable[[Any], Any]:
        def run(callback: Any) -> Any:
            if self._calls and self._calls[-1][0] is sys._getframe(1):
                if self._calls[-1][2]:
                    _, first, _ = self._calls.pop()
                    if not self._calls:  # not called by other compiled code
                        self._recording.compiled.append((first, self._recording.end))
                else:
                    self._calls[-1][2] = True
            return original(callback)

        return run
