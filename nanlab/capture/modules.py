"""Which module is running, by its attribute path."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any
from weakref import WeakKeyDictionary, ref

from torch import nn
from torch.nn.modules import module as torch_module
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook

from nanlab.trace.names import Names


class ModuleRecorder:
    """Keeps the path of the running module, through global forward hooks that live as long as the
    watch.

    A module called inside another is named by the path below that one, so a shared module bears the
    name of the place it is called from. The watched model is the root and has the empty path; any
    other outermost module is named by its class.
    """

    def __init__(
        self,
        model: nn.Module | None,
        names: Names,
        on_call: Callable[[], None],
        on_module: Callable[[str, nn.Module], bool],
        on_return: Callable[[nn.Module, Any], None],
    ) -> None:
        self._names, self._on_call, self._on_module, self._on_return = (
            names,
            on_call,
            on_module,
            on_return,
        )
        self._stack: list[tuple[nn.Module, str, int]] = []
        self._below: WeakKeyDictionary[nn.Module, dict[int, str]] = WeakKeyDictionary()
        # By id of a module and number of the path that it was called below: the module, its path,
        # the path's number.
        self._known: dict[tuple[int, int], tuple[ref[nn.Module], str, int]] = {}
        self._handles: list[Any] = []
        self._filter: Any = None  # of a warning that torch means for the program
        self.model = model
        self.failed: Callable[[Exception], None] = lambda error: None
        self.watched: Callable[[], bool] = lambda: True  # whether this thread is
        # number of the running module's path, depth
        self.moved: Callable[[int, int], None] = lambda path, depth: None
        self.current = 0  # number of the running module's path; 0 outside of every module

    def start(self) -> None:
        # The hooks of a compiled module firing once more does no harm here, and the program has no
        # global hooks that torch could mean.
        if not _has_global_hooks():
            warnings.filterwarnings(
                "ignore", message="Using `torch.compile.module.` when there are global hooks"
            )
            self._filter = warnings.filters[0]
        self._handles = [
            register_module_forward_pre_hook(self._guarded(self._enter)),
            register_module_forward_hook(self._guarded(self._leave), always_call=True),
        ]

    def stop(self) -> None:
        for handle in self._handles:
            handle.remove()
        self._handles, self._stack = [], []
        if self._filter in warnings.filters:
            warnings.filters.remove(self._filter)  # type: ignore[attr-defined]

    def _guarded(self, function: Callable[..., None]) -> Callable[..., None]:
        def run(*args: Any) -> None:
            if not self.watched():
                return
            try:
                function(*args)
                self.moved(self.current, len(self._stack))
            except Exception as error:
                self.failed(error)

        return run

    def _path(self, module: nn.Module) -> str:
        if module is self.model:
            return ""
        for parent, path, _ in reversed(self._stack):
            name = self._name_below(parent, module)
            if name:
                return f"{path}.{name}" if path else name
        if self.model is not None and (name := self._name_below(self.model, module)):
            return name
        return type(module).__name__

    def _name_below(self, parent: nn.Module, module: nn.Module) -> str:
        for name, child in parent._modules.items():
            if child is module:
                return name
        below = self._below.get(parent)
        if below is None or id(module) not in below:
            below = self._below[parent] = {
                id(m): n for n, m in parent.named_modules(remove_duplicate=False)
            }
        return below.get(id(module), "")

    def _enter(self, module: nn.Module, args: Any) -> None:
        if not self._stack:
            self._on_call()
        here = (id(module), self.current)
        known = self._known.get(here)
        if known is None or known[0]() is not module:
            path = self._path(module)
            known = (ref(module), path, self._names(path))
            if self._on_module(path, module):  # all its parameters exist by now
                self._known[here] = known
        self.current = known[2]
        self._stack.append((module, known[1], self.current))

    def _leave(self, module: nn.Module, args: Any, output: Any) -> None:
        while self._stack:
            if self._stack.pop()[0] is module:
                break
        self.current = self._stack[-1][2] if self._stack else 0
        if not self._stack:
            self._on_return(module, output)


def _has_global_hooks() -> bool:
    """Whether the program has registered global module hooks of its own; private tables, as in
    torch 2.6 to 2.13."""
    return any(
        getattr(torch_module, f"_global_{kind}")
        for kind in ("backward_pre_hooks", "backward_hooks", "forward_hooks", "forward_pre_hooks")
    )
