"""The program's own code inside of autograd: custom ``torch.autograd.Function`` and hooks."""

from __future__ import annotations

from typing import Any

import torch
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


class HookRecorder:
    """Wraps the hooks that may give a tensor another gradient.

    Those of a result are wrapped when they are registered, those of a leaf, which may be older than
    the watch, while the engine runs.
    """

    def __init__(self, ops: OpRecorder) -> None:
        self.ops, self.active = ops, False
        self._original: Any = None

    def start(self) -> None:
        original = self._original = torch.Tensor.register_hook

        def register_hook(tensor: torch.Tensor, hook: Any) -> Any:
            return original(tensor, self._of_result(tensor, hook))

        torch.Tensor.register_hook = register_hook  # type: ignore[method-assign]
        self.active = True

    def stop(self) -> None:
        if self._original is not None:
            torch.Tensor.register_hook = self._original  # type: ignore[method-assign]
        self.active = False

    def _of_result(self, tensor: torch.Tensor, hook: Any) -> Any:
        ops, program = self.ops, self.ops.program
        if program is None or ops.off or not is_watched(ops) or type(tensor) is not torch.Tensor:
            return hook
        try:
            if tensor.requires_grad and not tensor.is_leaf and callable(hook):
                return Hook(self, hook, program.hook_registered(tensor))
        except Exception as error:
            ops.failed(error)
        return hook

    def of_leaf(self, leaf: torch.Tensor, undo: list[Any]) -> None:
        """Wrap the hooks of a leaf that the engine is about to reach; ``undo`` puts them back."""
        program = self.ops.program
        hooks: Any = leaf._backward_hooks
        added: Any = leaf._post_accumulate_grad_hooks
        if program is None or not (hooks or added):
            return
        for each, late in ((hooks or {}, False), (added or {}, True)):
            for key, hook in list(each.items()):
                if not isinstance(hook, Hook):
                    each[key] = Hook(self, hook, program.hook_registered(leaf, late), late)
                    undo.append(_Unwrapping(each, key, each[key]))


class Hook:
    """A hook of the program, the calls of which are told from others."""

    def __init__(self, recorder: HookRecorder, hook: Any, number: int, late: bool = False) -> None:
        self.recorder, self.hook, self.number, self.late = recorder, hook, number, late

    def __call__(self, tensor: torch.Tensor) -> Any:
        ops, program = self.recorder.ops, self.recorder.ops.program
        if not self.recorder.active or ops.off or program is None:
            return self.hook(tensor)
        try:
            program.function_runs(self.number, (tensor.grad if self.late else tensor,))
        except Exception as error:
            ops.failed(error)
        result = self.hook(tensor)
        try:
            program.function_ran(self.number, (tensor.grad if self.late else result,))
        except Exception as error:
            ops.failed(error)
        return result


class _Unwrapping:
    """Puts a hook back, as the handles of other hooks remove them."""

    def __init__(self, hooks: Any, key: int, wrapped: Hook) -> None:
        self.hooks, self.key, self.wrapped = hooks, key, wrapped

    def remove(self) -> None:
        if self.hooks.get(self.key) is self.wrapped:
            self.hooks[self.key] = self.wrapped.hook
