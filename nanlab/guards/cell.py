"""Cells under guard: a call at the head of their training loops and their functions'."""

from __future__ import annotations

import ast
import re
import sys
import types
from collections.abc import Callable, Collection, Iterator
from typing import Any

from torch import nn

from nanlab.capture import Stop
from nanlab.capture.places import is_user_code
from nanlab.guards import loops
from nanlab.guards.engine import Guard, outcome
from nanlab.guards.loader import Loops
from nanlab.guards.loops import BACKWARD, instrument, source_of
from nanlab.guards.state import all_names, held
from nanlab.trace import Trace
from nanlab.trace.recording import Recording

COMMENT = re.compile(r"(^|\s)#.*")
MOST_FUNCTIONS = 5000  # of the user's own that are looked at


class CellHeads(ast.NodeTransformer):
    """IPython's AST transformer: puts heads into the training loops of a cell that is guarded."""

    def __init__(
        self, is_guarded: Callable[[ast.Module], bool], names: Callable[[], dict[str, Any]]
    ) -> None:
        self.is_guarded, self.names = is_guarded, names

    def visit(self, tree: ast.AST) -> ast.AST:
        """The tree with heads; as it was where the cell is not guarded."""
        if isinstance(tree, ast.Module) and self.is_guarded(tree):
            instrument(tree, loops.register, training_functions(self.names()))
        return tree


def user_functions(names: dict[str, Any]) -> Iterator[types.FunctionType]:
    """The user's functions and methods that some variables lead to, through modules too."""
    seen: set[int] = set()
    waiting = list(names.values())
    while waiting and len(seen) < MOST_FUNCTIONS:
        value = waiting.pop()
        if id(value) in seen:
            continue
        seen.add(id(value))
        if isinstance(value, types.FunctionType):
            value = getattr(value, "__wrapped__", value)
            if isinstance(value, types.FunctionType) and is_user_code(
                value.__code__, value.__globals__
            ):
                yield value
                known = value.__globals__
                waiting += [known[n] for n in all_names(value.__code__) if n in known]
        elif isinstance(value, types.MethodType):
            waiting.append(value.__func__)
        elif isinstance(value, types.ModuleType):
            if _is_users(value):
                waiting += [
                    v for v in vars(value).values() if isinstance(v, (types.FunctionType, type))
                ]
        elif isinstance(value, type):
            if _is_users(sys.modules.get(value.__module__)):
                waiting += [getattr(v, "__func__", v) for v in vars(value).values()]
        elif _is_users(sys.modules.get(type(value).__module__)):
            waiting.append(type(value))


def _is_users(module: Any) -> bool:
    """Whether a module is the user's: script, notebook, or outside the installed packages."""
    if module is None or module.__name__ == "__main__":
        return module is not None
    file = getattr(module, "__file__", None)
    return isinstance(file, str) and is_user_code(compile("", file, "exec"), vars(module))


def training_functions(names: dict[str, Any]) -> dict[str, list[types.FunctionType]]:
    """The functions that go backward, directly or by one another, by name."""
    functions = list(user_functions(names))
    uses = {id(f): all_names(f.__code__) for f in functions}
    found: dict[str, list[types.FunctionType]] = {}
    known = set(BACKWARD)
    while True:
        new = [f for f in functions if f not in found.get(f.__name__, ()) and uses[id(f)] & known]
        if not new:
            return found
        for function in new:
            found.setdefault(function.__name__, []).append(function)
            if not function.__name__.startswith("__"):
                known.add(function.__name__)


def asks_for_guard(tree: ast.Module, magics: Collection[str]) -> bool:
    """Whether one of these line magics stands in a cell with ``--guard``."""
    for statement in tree.body:
        call = statement.value if isinstance(statement, ast.Expr) else None
        if (
            isinstance(call, ast.Call)
            and isinstance(call.func, ast.Attribute)
            and call.func.attr == "run_line_magic"
        ):
            words = [a.value for a in call.args if isinstance(a, ast.Constant)]
            if (
                len(words) == 2
                and words[0] in magics
                and "--guard" in COMMENT.sub("", str(words[1])).split()
            ):
                return True
    return False


class CellGuard:
    """A cell under guard; in the place of the watch of another cell."""

    def __init__(
        self, model: nn.Module | None, snapshot: int | None, names: dict[str, Any]
    ) -> None:
        self.guard = Guard(model, snapshot=snapshot, ended=outcome(None))
        self.nothing = Trace(Recording())
        self._loops, self._heads = Loops(self.guard, model), FunctionHeads(names)

    @property
    def trace(self) -> Trace:
        """The replay; empty as long as the run is healthy."""
        return self.guard.trace or self.nothing

    @held()
    def __enter__(self) -> Trace:
        self._heads.__enter__()
        self._loops.__enter__()
        return self.trace

    @held()
    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        tb: types.TracebackType | None,
    ) -> bool:
        try:
            self._loops.__exit__(kind, error, tb)
        finally:
            self._heads.__exit__(kind, error, tb)
        return isinstance(error, Stop)

    def __str__(self) -> str:
        """What came of it, where no fault did."""
        steps = self.guard.done
        if not steps:
            return "guarded: no optimizer stepped here"
        return (
            f"guarded: {steps:,} step{'s' if steps != 1 else ''}, loss and gradients finite in each"
        )


class FunctionHeads:
    """While in the ``with`` block, the user's functions have heads in their training loops."""

    def __init__(self, names: dict[str, Any]) -> None:
        self.names = names
        self.was: list[tuple[types.FunctionType, types.CodeType, types.CodeType]] = []

    def __enter__(self) -> None:
        training = training_functions(self.names)
        by_file: dict[str, list[types.FunctionType]] = {}
        for function in [f for each in training.values() for f in each]:
            by_file.setdefault(function.__code__.co_filename, []).append(function)
        for file, functions in by_file.items():
            codes = _codes_with_heads(file, functions[0].__globals__, training)
            for function in functions:
                old = function.__code__
                new = codes.get((old.co_name, old.co_firstlineno))
                if new is not None and new.co_freevars == old.co_freevars:
                    function.__code__ = new
                    self.was.append((function, old, new))

    def __exit__(self, *exc: object) -> None:
        while self.was:
            function, old, new = self.was[-1]
            if function.__code__ is new:
                function.__code__ = old
            self.was.pop()


def _codes_with_heads(
    file: str, globals_: dict[str, Any], training: Any
) -> dict[tuple[str, int], types.CodeType]:
    """The functions of a file with heads, by name and first line."""
    try:
        tree = ast.parse(source_of(file, globals_), file)
        if not instrument(tree, loops.register, training):
            return {}
        waiting = [compile(tree, file, "exec", dont_inherit=True)]
    except (SyntaxError, ValueError):
        return {}
    found = {}
    while waiting:
        code = waiting.pop()
        found[code.co_name, code.co_firstlineno] = code
        waiting += [c for c in code.co_consts if isinstance(c, types.CodeType)]
    return found
