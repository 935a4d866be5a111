"""Other readers of what a function returns, where a fix makes it return something else."""

from __future__ import annotations

import ast
import builtins
from collections.abc import Callable, Iterator
from functools import cached_property, lru_cache

from nanlab.findings.rule import Edit, Fix
from nanlab.program.expression import nodes_of, parsed

Function = ast.FunctionDef | ast.AsyncFunctionDef


def other_readers(fix: Fix, line: int, text_of: Callable[[str], str]) -> list[int]:
    """Lines that call a function for which a fix writes another ``return``, beside those that it
    adapts to that; as far as the function's own file tells.

    line: of the fault; the function around it gives what it gave.
    """
    found: set[int] = set()
    edits = [edit for edit in fix.edits if not edit.imports]
    for file in dict.fromkeys(edit.file for edit in edits):
        try:
            page = _Page.of(text_of(file))
        except (SyntaxError, ValueError):
            continue
        for edit in (each for each in edits if each.file == file):
            function = page.returned_at(edit)
            if function is None or _holds(function, line):
                continue
            others = [e for e in edits if e.file == file and not _holds(function, e.first)]
            found |= page.readers(function, others) if others else set()
    return sorted(found)


def _holds(function: Function, line: int) -> bool:
    return function.lineno <= line <= (function.end_lineno or function.lineno)


class _Page:
    """The functions of a file, and what they call."""

    def __init__(self, tree: ast.Module) -> None:
        self.functions = [n for n in nodes_of(tree) if isinstance(n, Function)]
        named = (n for n in nodes_of(tree) if isinstance(n, Function | ast.ClassDef))
        self.own = {n.name for n in named}
        self.calls = [n for n in nodes_of(tree) if isinstance(n, ast.Call)]

    @classmethod
    @lru_cache(maxsize=16)
    def of(cls, text: str) -> _Page:
        """That of a file's text. Raises SyntaxError, ValueError."""
        return cls(parsed(text))

    @cached_property
    def _returns(self) -> list[tuple[Function, list[int]]]:
        """The functions, the innermost first, and the lines of the ``return`` in each."""
        return [
            (function, [n.lineno for n in ast.walk(function) if isinstance(n, ast.Return)])
            for function in reversed(self.functions)
        ]

    def returned_at(self, edit: Edit) -> Function | None:
        """The function whose ``return`` an edit changes."""
        for function, lines in self._returns:
            if any(edit.first <= line <= edit.last for line in lines):
                return function
        return None

    def holder(self, line: int) -> Function | None:
        """The innermost function around a line."""
        around = [f for f in self.functions if _holds(f, line)]
        return around[-1] if around else None

    def readers(self, function: Function, others: list[Edit]) -> set[int]:
        """The lines that call it, but in the functions of the other edits, and where these are
        called."""
        adapted = {self.holder(edit.first) for edit in others}
        named = {f.name for f in adapted if f is not None}
        around = {self.holder(c.lineno) for c in self.calls if _called(c) in named} | adapted
        names = {function.name}
        if function.name == "forward":  # of a module, which has another name where it is called
            names = {n for c in self.calls if self.holder(c.lineno) in around and (n := _called(c))}
            names -= self.own | vars(builtins).keys()
        given = dict(self._given(names))
        return {
            call.lineno
            for call in self.calls
            if (holder := self.holder(call.lineno)) not in {*around, function}
            and (_called(call) in names or _called(call) in given.get(holder, ()))
        }

    def _given(self, names: set[str]) -> Iterator[tuple[Function | None, set[str]]]:
        """The functions that take what has one of these names, and what they call it."""
        for call in self.calls:
            for function in (f for f in self.functions if f.name == _called(call)):
                pairs = zip(call.args, function.args.args, strict=False)
                taken = {p.arg for a, p in pairs if isinstance(a, ast.Name) and a.id in names}
                if taken:
                    yield function, taken


def _called(call: ast.Call) -> str:
    """``f`` of ``f(x)`` and ``self.f(x)``; "" of others."""
    match call.func:
        case ast.Name(id=name) | ast.Attribute(value=ast.Name(id="self"), attr=name):
            return name
    return ""
