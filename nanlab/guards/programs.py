"""Programs under guard: a script or module run as ``__main__``, and the cells of a notebook."""

from __future__ import annotations

import ast
import importlib.abc
import importlib.machinery
import importlib.util
import linecache
import os
import re
import sys
import types
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from nanlab.capture import FaultFound, Stop, watch
from nanlab.capture.places import Models, codes_in, is_user_code, joined
from nanlab.capture.state import all_names, are_finite, held
from nanlab.errors import UsageError
from nanlab.guards import loops
from nanlab.guards.engine import Guard
from nanlab.guards.loader import Loops
from nanlab.guards.loops import BACKWARD, instrument, source_of, training_names
from nanlab.guards.outcome import headline, outcome
from nanlab.trace import Trace
from nanlab.trace.recording import Recording


@dataclass(frozen=True)
class Program:
    """A program to run as ``__main__``."""

    source: str
    file: str
    called: str  # what Python puts at the front of sys.argv for it
    names: dict[str, Any]  # of the module, beside ``__name__``
    first_path: str  # what Python puts at the front of sys.path for it


def script(path: str) -> Program:
    """A script; ``-`` is stdin. Raises UsageError if it cannot be read."""
    if path == "-":
        text = sys.stdin.read()
        linecache.cache["<stdin>"] = (len(text), None, text.splitlines(keepends=True), "<stdin>")
        return Program(text, "<stdin>", "-", {}, "")
    try:
        with open(path, "rb") as file:
            source = importlib.util.decode_source(file.read())
    except (OSError, UnicodeError, SyntaxError) as error:
        raise UsageError(f"cannot read {path}: {error}") from None
    whole, folder = os.path.abspath(path), os.path.dirname(os.path.realpath(path))
    names = {"__file__": whole, **dict.fromkeys(("__spec__", "__package__", "__cached__"))}
    return Program(source, whole, path, names, folder)


def module(name: str) -> Program:
    """A module by dotted name (a package's ``__main__``). Raises UsageError if not found."""
    sys.path.insert(0, os.getcwd())
    importlib.invalidate_caches()
    try:
        spec = importlib.util.find_spec(name)
        if spec is not None and spec.submodule_search_locations is not None:
            spec = importlib.util.find_spec(f"{name}.__main__")
    except (ImportError, ValueError, AttributeError) as error:
        raise UsageError(f"cannot find the module {name}: {error}") from None
    finally:
        sys.path.pop(0)
    get_source = getattr(spec.loader, "get_source", None) if spec is not None else None
    source = get_source(spec.name) if spec is not None and get_source is not None else None
    if spec is None or source is None or spec.origin is None:
        raise UsageError(
            f"cannot find the source of the module {name}; run from the folder that contains it"
        )
    names = {
        "__file__": spec.origin,
        "__spec__": spec,
        "__package__": spec.parent,
        "__loader__": spec.loader,
    }
    return Program(source, spec.origin, spec.origin, names, os.getcwd())


@dataclass(frozen=True)
class Ended:
    """How a program ended."""

    error: BaseException | None  # of its own
    fault: Trace | None  # the trace, if a fault was found
    steps: int  # or backward passes that were seen


def run(
    program: Program,
    arguments: Sequence[str],
    guarded: bool,
    detail: Literal["full", "fault"] = "full",
) -> Ended:
    guard, watching = Guard(ended=_end), watch(detail=detail)
    watching.announces = False
    error: BaseException | None = None
    with _as_main(program, arguments) as names:
        try:
            with (
                _Imports() if guarded else nullcontext(),
                Loops(guard, None) if guarded else watching,
            ):
                exec(_compiled(program, guarded), names)
        except (Exception, SystemExit) as raised:
            error = raised
        except Stop:
            if guard.trace is None:
                raise
    if guarded:
        return Ended(error, guard.trace, guard.done)
    trace = watching.trace
    fault = trace if trace.culprit is not None else None
    return Ended(error, fault, len(trace.recording.passes))


def _end(trace: Trace) -> None:
    raise FaultFound(f"nanlab stopped the program: {headline(trace)}")


def _compiled(program: Program, guarded: bool) -> types.CodeType:
    tree = ast.parse(program.source, program.file)
    if guarded:
        instrument(tree, loops.register, _imported_names(tree, program.first_path))
    return compile(tree, program.file, "exec", dont_inherit=True)


@contextmanager
def _as_main(program: Program, arguments: Sequence[str]) -> Iterator[dict[str, Any]]:
    """Set sys.argv, sys.path and sys.modules as Python does for a program, in the block."""
    main = types.ModuleType("__main__")
    main.__dict__.update({"__builtins__": __builtins__, **program.names})
    was = sys.argv, sys.path[:], sys.modules["__main__"]
    sys.argv = [program.called, *arguments]
    sys.path[:1] = [program.first_path]
    sys.modules["__main__"] = main
    try:
        yield main.__dict__
    finally:
        sys.argv, sys.path[:], sys.modules["__main__"] = was


def _imported_names(tree: ast.Module, folder: str) -> set[str]:
    """Names of functions that run backward, in the user's modules that a program imports."""
    found, modules = set[str](), set[str]()
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module and not node.level:
            modules.add(node.module)
        elif isinstance(node, ast.Import):
            modules.update(alias.name for alias in node.names)
    for path in (Path(folder, *name.split(".")) for name in modules):
        for file in filter(Path.is_file, (path.with_suffix(".py"), path / "__init__.py")):
            with suppress(SyntaxError, ValueError, OSError):
                found |= training_names(ast.parse(file.read_bytes()))
    return found


class _Imports(importlib.abc.MetaPathFinder):
    """Instruments the training loops of user modules imported in the ``with`` block."""

    def __enter__(self) -> _Imports:
        sys.meta_path.insert(0, self)
        return self

    def __exit__(self, *exc: object) -> None:
        if self in sys.meta_path:
            sys.meta_path.remove(self)

    def find_spec(
        self, name: str, path: Any = None, target: Any = None
    ) -> importlib.machinery.ModuleSpec | None:
        spec = importlib.machinery.PathFinder.find_spec(name, path, target)
        if (
            spec is None
            or type(spec.loader) is not importlib.machinery.SourceFileLoader
            or not spec.origin
        ):
            return None
        if not is_user_code(compile("", spec.origin, "exec"), {}):
            return None
        spec.loader = _Loader(spec.loader.name, spec.loader.path)
        return spec


class _Loader(importlib.machinery.SourceFileLoader):
    """Compiles an instrumented module; neither reads nor writes cached bytecode."""

    def get_code(self, fullname: str) -> types.CodeType:
        path = self.get_filename(fullname)
        data = self.get_data(path)
        try:
            tree = ast.parse(importlib.util.decode_source(data), path)
            instrument(tree, loops.register, _imported_names(tree, os.path.dirname(path)))
            return compile(tree, path, "exec", dont_inherit=True)
        except SyntaxError:
            return self.source_to_code(data, path)  # as Python would report it


# Cells under guard: their training loops, and those of their functions, are instrumented.

COMMENT = re.compile(r"(^|\s)#.*")
MOST_FUNCTIONS = 5000  # of the user's own that are looked at


class CellHeads(ast.NodeTransformer):
    """IPython AST transformer: instruments the training loops of a guarded cell."""

    def __init__(
        self, is_guarded: Callable[[ast.Module], bool], names: Callable[[], dict[str, Any]]
    ) -> None:
        self.is_guarded, self.names = is_guarded, names

    def visit(self, tree: ast.AST) -> ast.AST:
        """The instrumented tree; unchanged if the cell is not guarded."""
        if isinstance(tree, ast.Module) and self.is_guarded(tree):
            instrument(tree, loops.register, training_functions(self.names()))
        return tree


def user_functions(names: dict[str, Any]) -> Iterator[types.FunctionType]:
    """The user's functions and methods reachable from variables, through modules too."""
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
    """The functions that run backward, directly or through each other, by name."""
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
    """Whether a cell calls one of these line magics with ``--guard``."""
    for statement in tree.body:
        call = statement.value if isinstance(statement, ast.Expr) else None
        if isinstance(call, ast.Call) and getattr(call.func, "attr", "") == "run_line_magic":
            words = [str(a.value) for a in call.args if isinstance(a, ast.Constant)]
            if len(words) == 2 and words[0] in magics:
                if "--guard" in COMMENT.sub("", words[1]).split():
                    return True
    return False


class CellGuard:
    """A cell under guard, with the interface of a watch."""

    def __init__(self, model: Models | None, snapshot: int | None, names: dict[str, Any]) -> None:
        model = joined(model, "nanlab.guard(loader, model, optimizer)")
        self.guard = Guard(model, snapshot=snapshot, ended=outcome(None))
        self.nothing = Trace(Recording())
        self._loops, self._heads = Loops(self.guard, model), FunctionHeads(names)

    @property
    def trace(self) -> Trace:
        """The trace of the replay; empty while the run is healthy."""
        return self.guard.trace or self.nothing

    @held()
    def __enter__(self) -> Trace:
        self._heads.__enter__()
        self._loops.__enter__()
        return self.trace

    @held()
    def __exit__(self, kind: Any, error: BaseException | None, tb: Any) -> bool:
        try:
            self._loops.__exit__(kind, error, tb)
        finally:
            self._heads.__exit__(kind, error, tb)
        return isinstance(error, Stop)

    def __str__(self) -> str:
        """The outcome of a healthy run, in one line."""
        steps = self.guard.done
        if not steps:
            return "guarded: no optimizer step ran in this cell"
        told = f"guarded: {steps:,} step{'s' if steps != 1 else ''}, loss and gradients finite in"
        if skipped := self.guard.skipped:
            return f"{told} each but {skipped:,} that the loss scaler skipped"
        return f"{told} each{self._bad_and_unused()}"

    def _bad_and_unused(self) -> str:
        """A clause that names a bad gradient of the model, which no step used."""
        model = self.guard.model
        for name, parameter in model.named_parameters() if model is not None else ():
            if parameter.grad is not None and not are_finite([parameter.grad]):
                return f"; the gradient of {name} is not finite, but no optimizer step used it"
        return ""


class FunctionHeads:
    """Instruments the training loops of the user's functions in the ``with`` block."""

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
    """The instrumented functions of a file, by name and first line."""
    try:
        tree = ast.parse(source_of(file, globals_), file)
        if not instrument(tree, loops.register, training):
            return {}
        codes = codes_in(compile(tree, file, "exec", dont_inherit=True))
    except (SyntaxError, ValueError):
        return {}
    return {(code.co_name, code.co_firstlineno): code for code in codes}
