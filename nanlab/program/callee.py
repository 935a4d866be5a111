"""The function of a library that a call of the user's entered: which value its parameters had."""

from __future__ import annotations

import ast
import inspect
import linecache
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import PurePath
from types import FunctionType
from typing import Any

from nanlab.errors import NotReplayable
from nanlab.program.expression import (
    Expression,
    Made,
    ValueAt,
    bind,
    inside,
    key_of,
    namespace_of,
    span_of,
)
from nanlab.trace.chunk import Span
from nanlab.trace.program import Ref
from nanlab.trace.recording import Recording

DEPTH = 5  # functions that a value is handed through
_ENTRIES = ("forward", "__call__")  # of an object that is called


def argument_of(
    recording: Recording,
    text: str,
    made: Sequence[Made],
    call: ast.Call,
    argument: ast.expr,
    value: ValueAt,
) -> Ref | None:
    """The value that an argument of a call into a library had, told by the library's own lines that
    read the parameter; None where none of them tells.

    text: of the user's file; made: the calls that this call made.
    """
    library = _Library(_by_file(recording, made), value)
    name = _imported(text).get(_last(call.func), _last(call.func))
    for function in library.entered(name, _class_of(text, key_of(call.func))):
        name = _parameter(function, call, argument)
        found = library.read(function, {name}, DEPTH).value if name else None
        if found is not None:
            return found
    return None


@dataclass(frozen=True)
class _Function:
    node: ast.FunctionDef | ast.AsyncFunctionDef
    owner: str  # the class that it is a method of
    file: str

    @property
    def name(self) -> str:
        return self.node.name


@dataclass(frozen=True)
class _Read:
    """What became of a value in a function."""

    value: Ref | None = None
    returned: frozenset[int] = frozenset()  # places of what is returned at which it stands


def _by_file(recording: Recording, made: Sequence[Made]) -> dict[str, list[Made]]:
    """By file of a library: the calls that its lines made, with the spans that they have there."""
    found: dict[str, list[Made]] = {}
    for each in made:
        row = recording.op(each.call.position)
        span = recording.spans[row.site] if row is not None and row.site != row.place else None
        if row is not None and span is not None:
            file = recording.places[row.site][2]
            found.setdefault(file, []).append(replace(each, span=span))
    return found


@lru_cache(maxsize=64)
def _functions_of(file: str) -> tuple[_Function, ...]:
    """The functions of a file, methods among them."""
    try:
        tree = ast.parse("".join(linecache.getlines(file)))
    except (SyntaxError, ValueError):
        return ()
    found: list[_Function] = []
    waiting: list[tuple[ast.AST, str]] = [(tree, "")]
    for node, owner in waiting:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef):
                found.append(_Function(child, owner, file))
            waiting.append((child, child.name if isinstance(child, ast.ClassDef) else ""))
    return tuple(found)


@dataclass
class _Library:
    """The files of a library that a call of the user's ran through."""

    made: dict[str, list[Made]]  # by file
    value: ValueAt
    _named: dict[str, list[_Function]] = field(default_factory=dict)

    def entered(self, name: str, made_by: str = "") -> list[_Function]:
        """The function that a call by this name entered; made_by: the class of what is called."""
        found = self.named(name)
        if not found and made_by:
            entries = (self._method(made_by, entry) for entry in _ENTRIES)
            found = [each for each in entries if each is not None][:1]
        if len(found) > 1:
            found = [each for each in found if self._computed(each)]
        return found if len(found) == 1 else []

    def _computed(self, function: _Function) -> bool:
        """Whether lines of a function made calls."""
        first, last = function.node.lineno, function.node.end_lineno or 0
        return any(first <= m.span[0] <= last for m in self.made.get(function.file, ()))

    def named(self, name: str) -> list[_Function]:
        """Functions of this name, in the files at hand first, then in their packages."""
        if name not in self._named:
            near = [f for file in self.made for f in _functions_of(file) if f.name == name]
            self._named[name] = near or [
                f for each in self._loaded(name) if (f := _function(each)) is not None
            ]
        return self._named[name]

    def _loaded(self, name: str) -> list[Any]:
        """What modules of the packages at hand hold under a name."""
        packages = {_package(file) for file in self.made} - {""}
        found: dict[int, Any] = {}
        for module, held in list(sys.modules.items()):
            if module.partition(".")[0] in packages:
                each = getattr(held, "__dict__", {}).get(name)
                if each is not None:
                    found[id(each)] = each
        return list(found.values())

    def _method(self, owner: str, name: str) -> _Function | None:
        """A method of a class, perhaps inherited."""
        for each in self._loaded(owner):
            if isinstance(each, type) and (found := _function(getattr(each, name, None))):
                return found
        return None

    def read(self, function: _Function, names: set[str], depth: int) -> _Read:
        """Follow a value through a function from its parameter to a telling expression."""
        spans = {m.span for m in self.made.get(function.file, ())}
        returned: set[int] = set()
        statements = [n for n in ast.walk(function.node) if isinstance(n, ast.stmt)]
        for statement in sorted(statements, key=lambda n: n.lineno):
            heads = [
                c
                for c in ast.iter_child_nodes(statement)
                if isinstance(c, ast.expr) and not isinstance(getattr(c, "ctx", None), ast.Store)
            ]
            given: set[int] = set()  # places of the statement's value at which it stands
            for node in (n for head in heads for n in _postorder(head) if isinstance(n, ast.expr)):
                for name in sorted(names):
                    found = self._bound(node, name, function.file)
                    if found is not None:
                        return _Read(found)
                if isinstance(node, ast.Call) and depth:
                    inner = self._handed(node, names, depth)
                    if inner.value is not None:
                        return inner
                    if node is getattr(statement, "value", None):
                        given |= inner.returned
            value = getattr(statement, "value", None)
            if isinstance(value, ast.expr):
                given |= _standing(value, names, spans)
            if isinstance(statement, ast.Return):
                returned |= given
            elif isinstance(statement, ast.Assign):
                # one that computed nothing may stand in a branch that was not taken
                anew = any(inside(span, span_of(statement)) for span in spans)
                for target in statement.targets:
                    parts = target.elts if isinstance(target, ast.Tuple) else [target]
                    for at, part in enumerate(parts):
                        if isinstance(part, ast.Name) and at in given:
                            names.add(part.id)
                        elif isinstance(part, ast.Name) and anew:
                            names.discard(part.id)
        return _Read(None, frozenset(returned))

    def _handed(self, call: ast.Call, names: set[str], depth: int) -> _Read:
        """What becomes of the value in a function that it is handed to."""
        for name in sorted(names):
            argument = ast.Name(name, ast.Load())
            if not any(key_of(n) == key_of(argument) for n in _given(call)):
                continue
            for function in self.entered(_last(call.func)):
                taken = _parameter(function, call, argument)
                inner = self.read(function, {taken}, depth - 1) if taken else _Read()
                if inner.value is not None or inner.returned:
                    return inner
        return _Read()

    def _bound(self, node: ast.expr, name: str, file: str) -> Ref | None:
        """A name's value that an expression reads, if that gives what was recorded."""
        span, key = span_of(node), key_of(ast.Name(name, ast.Load()))
        own = [m for m in self.made.get(file, ()) if inside(m.span, span)]
        reads = any(isinstance(n, ast.Name) and key_of(n) == key for n in ast.walk(node))
        if not reads or not any(m.span == span for m in own):
            return None
        text = "".join(linecache.getlines(file))
        device = next((m.result.device.type for m in own if hasattr(m.result, "device")), "cpu")
        try:
            bound = bind(Expression(node, namespace_of(text), device), own, self.value)
        except NotReplayable:
            return None
        found: Any = bound[0].parts.get(key)
        return found if found.__class__ is Ref else None


def _standing(value: ast.expr, names: set[str], spans: set[Span]) -> set[int]:
    """Places of a tuple, or of one value, at which a name stands, methods apart."""
    parts = value.elts if isinstance(value, ast.Tuple) else [value]
    found = set()
    for at, part in enumerate(parts):
        while (
            isinstance(part, ast.Call)
            and isinstance(part.func, ast.Attribute)
            and not any(inside(span, span_of(part)) for span in spans)
        ):
            part = part.func.value
        if isinstance(part, ast.Name) and part.id in names:
            found.add(at)
    return found


@lru_cache(maxsize=16)
def _imported(text: str) -> dict[str, str]:
    """By the name that a file gives to what it imports: its own name."""
    found = (
        alias
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    )
    return {alias.asname: alias.name for alias in found if alias.asname}


def _class_of(text: str, key: str) -> str:
    """The class that a file makes what is called of; empty where it is not one alone."""
    found = set()
    for node in ast.walk(ast.parse(text)):
        if not isinstance(node, ast.Assign) or not isinstance(node.value, ast.Call):
            continue
        for target in node.targets:
            if key_of(ast.parse(ast.unparse(target), mode="eval").body) == key:
                found.add(_last(node.value.func))
    if len(found) != 1:
        return ""
    name = found.pop()
    return _imported(text).get(name, name)


def _function(held: Any) -> _Function | None:
    """The source of a function or method, without its decorators."""
    try:
        plain = inspect.unwrap(held) if callable(held) else None
    except ValueError:
        return None
    if not isinstance(plain, FunctionType):
        return None
    code = plain.__code__
    for each in _functions_of(code.co_filename):
        first = min([each.node.lineno, *(d.lineno for d in each.node.decorator_list)])
        if each.name == code.co_name and first == code.co_firstlineno:
            return each
    return None


def _package(file: str) -> str:
    """The package of an installed file."""
    parts = PurePath(file).parts
    at = next((i for i, part in enumerate(parts) if part in ("site-packages", "dist-packages")), -1)
    return parts[at + 1] if 0 <= at < len(parts) - 1 else ""


def _given(call: ast.Call) -> list[ast.expr]:
    return [*call.args, *(keyword.value for keyword in call.keywords)]


def _parameter(function: _Function, call: ast.Call, argument: ast.expr) -> str:
    """The parameter that takes an argument of a call; empty where that cannot be told."""
    taken = function.node.args
    names = [each.arg for each in (*taken.posonlyargs, *taken.args)]
    if function.owner and "staticmethod" not in map(_last, function.node.decorator_list):
        names = names[1:]
    for at, given in enumerate(call.args):
        if isinstance(given, ast.Starred):
            return ""
        if key_of(given) == key_of(argument):
            return names[at] if at < len(names) else ""
    known = {*names, *(each.arg for each in taken.kwonlyargs)}
    for keyword in call.keywords:
        if keyword.arg in known and key_of(keyword.value) == key_of(argument):
            return keyword.arg or ""
    return ""


def _postorder(node: ast.AST) -> Iterator[ast.AST]:
    for child in ast.iter_child_nodes(node):
        yield from _postorder(child)
    yield node


def _last(node: ast.expr) -> str:
    return node.attr if isinstance(node, ast.Attribute) else getattr(node, "id", "")
