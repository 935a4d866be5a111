"""A script or a module run as ``__main__`` under a watch or a guard, without a change to it."""

from __future__ import annotations

import ast
import importlib.abc
import importlib.machinery
import importlib.util
import linecache
import os
import sys
import types
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from nanlab.capture import FaultFound, Stop, watch
from nanlab.capture.places import is_user_code
from nanlab.errors import UsageError
from nanlab.guards import loops
from nanlab.guards.engine import Guard, headline
from nanlab.guards.loader import Loops
from nanlab.guards.loops import instrument, training_names
from nanlab.trace import Trace


@dataclass(frozen=True)
class Program:
    """What is to be run as ``__main__``."""

    source: str
    file: str
    called: str  # what Python puts at the front of sys.argv for it
    names: dict[str, Any]  # of the module, beside ``__name__``
    first_path: str  # what Python puts at the front of sys.path for it


def script(path: str) -> Program:
    """A script; ``-`` is stdin. Raises UsageError where it cannot be read."""
    if path == "-":
        text = sys.stdin.read()
        linecache.cache["<stdin>"] = (len(text), None, text.splitlines(keepends=True), "<stdin>")
        return Program(text, "<stdin>", "-", {}, "")
    try:
        with open(path, "rb") as file:
            source = importlib.util.decode_source(file.read())
    except (OSError, UnicodeError, SyntaxError) as error:
        raise UsageError(f"cannot read {path}: {error}") from None
    names = {
        "__file__": os.path.abspath(path),
        "__spec__": None,
        "__package__": None,
        "__cached__": None,
    }
    folder = os.path.dirname(os.path.realpath(path))
    return Program(source, os.path.abspath(path), path, names, folder)


def module(name: str) -> Program:
    """A module by dotted name, of a package its ``__main__``. Raises UsageError for none."""
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
            f"cannot find the source of the module {name}; is the current folder its parent?"
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
    """Run a program."""
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


def _end(trace: Trace, guard: Guard) -> None:
    raise FaultFound(f"nanlab stopped the program: {headline(trace)}")


def _compiled(program: Program, guarded: bool) -> types.CodeType:
    tree = ast.parse(program.source, program.file)
    if guarded:
        instrument(tree, loops.register, _imported_names(tree, program.first_path))
    return compile(tree, program.file, "exec", dont_inherit=True)


@contextmanager
def _as_main(program: Program, arguments: Sequence[str]) -> Iterator[dict[str, Any]]:
    """sys.argv, sys.path and sys.modules as Python sets them for a program; put back afterwards."""
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
    """Names of functions that go backward, of the user's own modules that a program imports."""
    found: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module and not node.level:
            files = [node.module]
        elif isinstance(node, ast.Import):
            files = [alias.name for alias in node.names]
        else:
            continue
        for name in files:
            path = Path(folder, *name.split("."))
            for file in (path.with_suffix(".py"), path / "__init__.py"):
                if file.is_file():
                    try:
                        found |= training_names(ast.parse(file.read_bytes()))
                    except (SyntaxError, ValueError, OSError):
                        continue
    return found


class _Imports(importlib.abc.MetaPathFinder):
    """In the ``with`` block, the user's modules are imported with heads in training loops."""

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
    """Compiles a module with heads; neither reads nor writes its cached bytecode."""

    def get_code(self, fullname: str) -> types.CodeType:
        path = self.get_filename(fullname)
        data = self.get_data(path)
        try:
            tree = ast.parse(importlib.util.decode_source(data), path)
            instrument(tree, loops.register, _imported_names(tree, os.path.dirname(path)))
            return compile(tree, path, "exec", dont_inherit=True)
        except SyntaxError:
            return self.source_to_code(data, path)  # as Python would report it
