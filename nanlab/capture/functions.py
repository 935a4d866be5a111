"""Each custom ``torch.autograd.Function`` at work: what went into its forward and came out."""

from __future__ import annotations

from typing import Any

from torch.autograd.function import _SingleLevelFunction

from nanlab.capture.dispatch import OpRecorder
from nanlab.capture.execution import is_watched


class FunctionRecorder:
    """Wraps torch's one entry into custom Functions.

    Programs bind ``f = MyFunction.apply`` long before a watch begins; that ``apply`` looks up the
    one of ``_SingleLevelFunction``, a private class, each time it is called (torch 2.6 to 2.13).
    """

    def __init__(self, ops: OpRecorder) -> None:
        self.ops = ops

    def start(self) -> None:
        recorder = self

        def apply(cls: Any, *args: Any, **kwargs: Any) -> Any:
            call = super(_SingleLevelFunction, cls).apply  # type: ignore[misc]
            return recorder._apply(call, args, kwargs)

        _SingleLevelFunction.apply = classmethod(apply)  # type: ignore[attr-defined]

    def stop(self) -> None:
        if "apply" in vars(_SingleLevelFunction):
            del _SingleLevelFunction.apply  # type: ignore[attr-defined]

    def _apply(self, call: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        ops, program = self.ops, self.ops.program
        if program is None or ops.off or not is_watched(ops):
            return call(*args, **kwargs)
        use = None
        try:
            use = program.function_begins((*args, *kwargs.values()), ops.source)
        except Exception as error:
            ops.failed(error)
        results = call(*args, **kwargs)
        try:
            if use is not None:
                program.function_ended(use, args, results)
        except Exception as error:
            ops.failed(error)
        return results
