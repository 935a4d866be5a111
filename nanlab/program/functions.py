"""The functions of a file: who calls whom, and which of them ran in a step."""

from __future__ import annotations

import ast
import builtins
import sys
from collections.abc import Collection, Sequence, Set
from dataclasses import dataclass
from functools import cached_property, lru_cache

import torch

from nanlab.errors import NotReplayable
from nanlab.program.edit_text import assignments_in
from nanlab.program.expression import (
    assigned_pairs,
    imports_of,
    last_name,
    lines_of,
    names_in,
    nodes_of,
    parsed,
    root_of,
    sides_of,
    span_of,
    stored_in,
)
from nanlab.trace.chunk import Span

_ACTS = frozenset({"backward", "checkpoint", "grad", "step", "zero_grad", "print"})
_TRANSFORMS = frozenset({"vmap", "jvp", "vjp", "jacrev", "jacfwd", "hessian", "compile", "script"})
_WRITES = frozenset({"append", "extend", "insert", "update", "pop", "add", "setdefault"})
_LIBRARIES = frozenset({"torch", "numpy", "nanlab"}) | sys.stdlib_module_names


@dataclass(frozen=True)
class Ran:
    """The lines and calls of one file that computed something in the step."""

    lines: Set[int]
    spans: Set[Span | None]  # of the calls and operators that did

    def explains(self, call: ast.Call, around: ast.AST) -> bool:
        """Whether a call computed at its own place, or stands on a side that did not run."""
        return span_of(call) in self.spans or call.lineno in not_run(around, self.lines)

    def reached(self, function: ast.AST, functions: Sequence[ast.FunctionDef]) -> bool:
        """Whether lines of the function itself computed something."""
        whole = not hasattr(function, "lineno")  # the file
        inner = (f for f in functions if whole or f.lineno in lines_of(function)[1:])
        own = {*lines_of(function)} if not whole else self.lines
        return not self.lines.isdisjoint(own - {line for f in inner for line in lines_of(f)})


class Functions:
    """The functions of a file, and who calls whom."""

    def __init__(self, text: str) -> None:
        tree = parsed(text)
        self.all = [n for n in nodes_of(tree) if isinstance(n, ast.FunctionDef)]
        self.known = _known(tree, self.all)
        modules = {given: module.partition(".")[0] for given, module, *_ in imports_of(text)}
        self.imported = {given for given, module in modules.items() if module in _LIBRARIES}
        self.elsewhere = modules.keys() - self.imported
        self.calls: dict[ast.AST, list[ast.Call]] = {f: [] for f in (tree, *self.all)}
        innermost = {
            line: f for f in sorted(self.all, key=lambda f: f.lineno) for line in lines_of(f)
        }
        calls = [n for n in nodes_of(tree) if isinstance(n, ast.Call)]
        called = {id(call.func) for call in calls}
        for call in calls:
            self.calls[innermost.get(call.lineno, tree)].append(call)
        every = (
            last_name(call.func)
            for call in calls
            if not (isinstance(call.func, ast.Name) and hasattr(builtins, call.func.id))
        )
        self.transforms = not _TRANSFORMS.isdisjoint(every)
        self.classes = {n.name for n in nodes_of(tree) if isinstance(n, ast.ClassDef)}
        self.whole = tree
        returned = {
            id(n)
            for r in nodes_of(tree)
            if isinstance(r, ast.Return)
            for n in getattr(r.value, "elts", [r.value])
        }
        names = {
            last_name(n)
            for n in nodes_of(tree)
            if isinstance(n, ast.Name | ast.Attribute)
            if isinstance(n.ctx, ast.Load) and id(n) not in called | returned
        }
        # functions that somebody is given, alone or as an object's
        self.given = [f for f in self.all if f.name in ("forward", "__call__", *names)]

    @classmethod
    @lru_cache(maxsize=16)
    def of(cls, text: str) -> Functions:
        """Those of a text."""
        return cls(text)

    def callees(self, call: ast.Call, around: ast.AST) -> list[ast.FunctionDef] | None:
        """The file's functions that a call may run, none for one of torch's, of a tensor or of
        Python; None where it may run an unknown one."""
        name, root = last_name(call.func), root_of(call.func)
        if root in self.imported:
            return []
        if root in self.elsewhere:
            return None
        if name in self.known:
            return self.known[name]
        if (aliased := self._aliased(call, around)) is not None:
            return aliased
        if not isinstance(call.func, ast.Name) and root != "self":
            return []  # of a tensor
        local = isinstance(call.func, ast.Name) and name in _lambdas(around)
        local |= name in self.classes  # makes an object
        return [] if local or hasattr(builtins, name) or hasattr(torch.Tensor, name) else None

    def _aliased(self, call: ast.Call, around: ast.AST) -> list[ast.FunctionDef] | None:
        """The functions behind a name of the function around, ``law = self.one if x else
        self.other``; None where it is no such name."""
        if not isinstance(call.func, ast.Name) or not isinstance(around, ast.FunctionDef):
            return None
        assigned = (n for n in ast.walk(around) if isinstance(n, ast.Assign))
        pairs = [pair for n in assigned for pair in assigned_pairs(n)]
        values = [v for t, v in pairs if isinstance(t, ast.Name) and t.id == call.func.id]
        found: list[ast.FunctionDef] = []
        for side in (side for value in values for side in sides_of(value)):
            if not isinstance(side, ast.Attribute) or root_of(side) != "self":
                return None
            if (known := self.known.get(last_name(side))) is None:
                return None
            found += known if len(known) < 2 else self._of_class(known, around)
        return found or None

    def _of_class(
        self, functions: Sequence[ast.FunctionDef], method: ast.FunctionDef
    ) -> Sequence[ast.FunctionDef]:
        """Those of some functions that stand in the class of a method; all if none does."""
        classes = (n for n in nodes_of(self.whole) if isinstance(n, ast.ClassDef))
        lines = next(({*lines_of(c)} for c in classes if method.lineno in lines_of(c)), set())
        return [f for f in functions if f.lineno in lines] or functions

    @cached_property
    def _called(self) -> list[tuple[ast.FunctionDef, set[ast.FunctionDef], bool]]:
        """(function, functions it calls, whether it calls an unknown one) of each but __init__."""
        found = []
        for function in (f for f in self.all if f.name != "__init__"):
            each = [self.callees(call, function) for call in self.calls[function]]
            found.append((function, {f for c in each for f in c or ()}, None in each))
        return found

    def callers(self, function: ast.FunctionDef) -> list[ast.FunctionDef]:
        """The functions that call a function, or may because they are given it."""
        given = function in self.given
        return [
            other
            for other, callees, unclear in self._called
            if other is not function and (function in callees or (unclear and given))
        ]

    def behind(
        self, function: ast.FunctionDef, ran: Ran | None = None
    ) -> tuple[list[ast.FunctionDef], list[ast.FunctionDef]]:
        """The functions that run within a function, itself first; and those of them that others
        call.

        ran: what the step computed; None: go by the text alone. Raises NotReplayable where the
        function does more than compute.
        """
        if ran is not None and not ran.reached(function, self.all):
            raise NotReplayable(f"nothing that {function.name} computes itself ran in the step")
        if self.transforms:
            raise NotReplayable("it may be run under a transform of torch.func")
        found, todo, asked = [function], [function], False
        while todo:
            body = todo.pop()
            inner = [f for f in self.all if f is not body and f.lineno in lines_of(body)]
            own = {*stored_in(body), *(f.name for f in inner)}
            for call in (call for f in (body, *inner) for call in self.calls[f]):
                name, callees = last_name(call.func), self.callees(call, body)
                if ast.unparse(call.func).endswith("autograd.grad"):
                    continue
                if any(keyword.arg == "requires_grad" for keyword in call.keywords):
                    raise NotReplayable(f"{body.name} makes a tensor that requires a gradient")
                if name in _ACTS or (name in _WRITES and root_of(call.func) not in own):
                    raise NotReplayable(f"{body.name} does more than compute")
                new = callees or []
                if callees is None and ran is not None and not ran.explains(call, body):
                    new, asked = self.given, True
                    if not any(ran.reached(f, self.all) for f in new):
                        raise NotReplayable(f"{body.name} calls what may do more than compute")
                if ran is not None and span_of(call) in ran.spans:
                    new = []  # a method of a tensor, or a layer
                elif ran is not None and len(new) > 1:
                    new = [f for f in new if ran.reached(f, self.all)]
                more = [f for f in new if f not in found and f not in inner]
                found += more
                todo += more
        return found, [] if ran is None else self._shared(found, asked, ran)

    def _shared(
        self, found: Sequence[ast.FunctionDef], asked: bool, ran: Ran
    ) -> list[ast.FunctionDef]:
        """The functions found that others that ran call, too. Raises NotReplayable where results of
        these may be arguments of the function: then it is not known where it begins.

        asked: whether some of them are known because they ran alone.
        """
        others = [f for f in (self.whole, *self.all) if f not in found and ran.reached(f, self.all)]
        sharing: list[ast.AST] = []
        for _ in others:  # those that call some, and those that call these
            for other in (f for f in others if f not in sharing):
                for call in self.calls[other]:
                    callees = self.callees(call, other)
                    unclear = callees is None and asked and not ran.explains(call, other)
                    if unclear or any(f in (*found[1:], *sharing) for f in callees or ()):
                        sharing.append(other)
                        break
        for other in sharing:
            for call in self.calls[other]:
                callees = self.callees(call, other)
                if callees is None or found[0] in callees:
                    if self._is_fed(call, other, [*found[1:], *sharing], callees is None and asked):
                        name = getattr(other, "name", "the file")
                        raise NotReplayable(f"{name} runs a part of {found[0].name}, too")
        called = [c for other in sharing for c in self.calls[other]]
        known = [f for call in called for f in self.callees(call, self.whole) or ()]
        todo = [f for f in found[1:] if f in known]
        for function in todo:  # and what these call
            for call in self.calls[function]:
                more = self.callees(call, function) or ()
                todo += [f for f in more if f in found[1:] and f not in todo]
        return todo

    def _is_fed(
        self, call: ast.Call, around: ast.AST, shared: Sequence[ast.AST], unclear: bool
    ) -> bool:
        """Whether an argument of a call may be the result of one of some functions, by its
        names."""
        if unclear:
            return True
        read, known = names_in(*call.args, *(k.value for k in call.keywords)), set[str]()
        values: list[ast.AST] = [*call.args, *call.keywords]
        while read - known:
            name = (read - known).pop()
            known.add(name)
            for statement in (n for n in ast.walk(around) if isinstance(n, ast.stmt)):
                if name in stored_in(statement) and not hasattr(statement, "body"):
                    values.append(statement)
                    read |= names_in(statement)
        calls = {id(n): n for v in values for n in ast.walk(v) if isinstance(n, ast.Call)}
        calls.pop(id(call), None)
        return any(
            callees is None or any(f in shared for f in callees)
            for callees in (self.callees(each, around) for each in calls.values())
        )


def _known(tree: ast.AST, functions: Sequence[ast.FunctionDef]) -> dict[str, list[ast.FunctionDef]]:
    """The functions by the names under which they are called. ``forward`` and ``__call__`` go by
    the names of objects of their class."""
    found: dict[str, list[ast.FunctionDef]] = {}
    for function in (f for f in functions if f.name not in ("forward", "__call__")):
        found.setdefault(function.name, []).append(function)
    called = {
        each.name: method
        for each in nodes_of(tree)
        if isinstance(each, ast.ClassDef)
        for method in each.body
        if isinstance(method, ast.FunctionDef) and method.name in ("forward", "__call__")
    }
    for statement in (n for n in nodes_of(tree) if isinstance(n, ast.Assign)):
        for name, value in assigned_pairs(statement):
            if isinstance(value, ast.Call) and last_name(value.func) in called:
                found.setdefault(last_name(name), []).append(called[last_name(value.func)])
    return found


@lru_cache(maxsize=1024)
def _lambdas(body: ast.AST) -> set[str]:
    """The names to which a function assigns lambdas alone."""
    given = [(last_name(t), v) for n in ast.walk(body) for t, v in assignments_in(n)]
    others = {name for name, value in given if not isinstance(value, ast.Lambda)}
    return {name for name, _ in given} - others


def not_run(function: ast.AST, ran: Collection[int]) -> set[int]:
    """Lines on sides of conditions that computed nothing while the other side did."""
    found: set[int] = set()
    for node in ast.walk(function):
        if isinstance(node, ast.If):
            sides = [
                {line for each in side for line in lines_of(each)}
                for side in (node.body, node.orelse)
            ]
            did = [not side.isdisjoint(ran) for side in sides]
            if did[0] != did[1]:
                found |= sides[did[0]]
    return found
