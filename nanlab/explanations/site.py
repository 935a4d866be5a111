"""An exception with the statements of the program that have to do with it, and edits of them."""

from __future__ import annotations

import ast
import builtins
import inspect
import math
import os
import re
from collections.abc import Iterator, Sequence
from configparser import RawConfigParser, SectionProxy
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property
from types import FrameType, FunctionType, TracebackType
from typing import Any, get_overloads

import numpy as np
import pandas as pd
import torch
from torch import nn

from nanlab.explanations.trial import Frame, Program, Source, Step, program_of
from nanlab.findings.rule import Edit

Tensor = torch.Tensor


MISSING = object()


Function = ast.FunctionDef | ast.AsyncFunctionDef


# What an index is looked up in: elsewhere it may run code of the program.
_INDEXED = (
    *(Tensor, np.ndarray, list, tuple, dict, nn.Module, pd.DataFrame),
    *(RawConfigParser, SectionProxy, type(os.environ)),
)


ASKED = ("size", "dim", "numel", "item", "stride", "parameters", "backward")  # what is asked of it


# What goes into these is the program's data: with less of it many an error goes away.
_GATHER = (
    "zip list tuple dict set enumerate iter next map filter sorted range parameters DataLoader"
    " TensorDataset".split()
)


@dataclass(frozen=True)
class Candidate:
    """An edit, and how unusual the mistake is that it would mend."""

    cost: float
    edits: tuple[Edit, ...]
    kind: str = field(default="", compare=False)  # what made it


@dataclass(frozen=True)
class Place:
    """A statement of the program that has to do with the exception."""

    source: Source
    statement: ast.stmt
    frame: Frame  # in which its names are looked up
    distance: float  # added to the cost of what is changed here

    def calls(self) -> list[ast.Call]:
        return [node for node in self.parts() if isinstance(node, ast.Call)]

    @property
    def operands(self) -> list[tuple[ast.expr, str]]:
        """Expressions of a statement that could be other tensors, each with its role."""
        found: dict[int, tuple[ast.expr, str]] = {}
        for node in self.parts():
            pairs: list[tuple[ast.expr, str]] = []
            if callee(node) in _GATHER:
                continue
            if isinstance(node, ast.Call):
                pairs = [(a, "argument") for a in node.args]
                pairs += [(k.value, "argument") for k in node.keywords]
                if isinstance(node.func, ast.Attribute) and node.func.attr not in ASKED:
                    pairs.append((node.func.value, "receiver"))
            elif isinstance(node, ast.BinOp):
                pairs = [(node.left, "side"), (node.right, "side")]
            elif isinstance(node, ast.Compare):
                pairs = [(each, "side") for each in (node.left, *node.comparators)]
            elif isinstance(node, ast.Subscript):
                pairs = [(node.value, "indexed"), (node.slice, "index")]
            elif isinstance(node, (ast.List, ast.Tuple)) and isinstance(node.ctx, ast.Load):
                pairs = [(e, "element") for e in node.elts]
            elif (
                isinstance(node, (ast.Assign, ast.AugAssign, ast.Return)) and node.value is not None
            ):
                pairs = [(node.value, "value")]
            for expression, role in pairs:
                if isinstance(expression, (ast.Starred, ast.Constant, ast.Slice, ast.Lambda)):
                    continue
                if isinstance(expression, ast.UnaryOp) and number_of(expression) is not MISSING:
                    continue
                found.setdefault(id(expression), (expression, role))
        return list(found.values())

    @property
    def function(self) -> Function | None:
        """The innermost function around the statement."""
        return function_around(self.source, self.statement)

    @property
    def in_class(self) -> ast.ClassDef | None:
        """The class whose function the statement is in; None where it is in none."""
        kinds = [n for n in self.source.nodes if isinstance(n, ast.ClassDef)]
        return next((each for each in kinds if self.function in each.body), None)

    @property
    def block(self) -> list[ast.stmt]:
        """The statements of the block that it stands in."""
        names = ("body", "orelse", "finalbody")
        blocks = (getattr(node, name, []) for node in self.source.nodes for name in names)
        lists = (rows for rows in blocks if isinstance(rows, list))
        return next((rows for rows in lists if self.statement in rows), [])

    def parts(self) -> tuple[ast.AST, ...]:
        """The nodes of a statement; of a block, those of its first line."""
        return self._parts

    @cached_property
    def _parts(self) -> tuple[ast.AST, ...]:
        body = {id(s) for name in ("body", "orelse") for s in getattr(self.statement, name, [])}
        inside = self.frame.f_code.co_name == "<lambda>"  # it ran
        found: list[ast.AST] = []
        todo: list[ast.AST] = [self.statement]
        while todo:
            node = todo.pop(0)
            if id(node) not in body and (inside or not isinstance(node, ast.Lambda)):
                found.append(node)
                todo += ast.iter_child_nodes(node)
        return tuple(found)

    def value(self, node: ast.AST) -> Any:
        """What an expression stands for now; MISSING where it would have to be computed."""
        with suppress(Exception):
            if isinstance(node, ast.Constant):
                return node.value
            if isinstance(node, ast.Name):
                for names in (self.frame.f_locals, self.frame.f_globals, vars(builtins)):
                    if node.id in names:
                        return names[node.id]
            if isinstance(node, ast.Attribute) and (of := self.value(node.value)) is not MISSING:
                return getattr(of, node.attr)
            if callee(node) == "super":
                bases = self.in_class.bases if self.in_class is not None else []
                return self.value(bases[0]) if bases else MISSING
            if isinstance(node, ast.Call) and callee(node) == "size":
                of = self.value(node.func.value)  # type: ignore[attr-defined]
                return of.size(*map(self.value, node.args)) if isinstance(of, Tensor) else MISSING
            if isinstance(node, ast.Subscript) and (of := self.value(node.value)) is not MISSING:
                calls = [each for each in ast.walk(node.slice) if isinstance(each, ast.Call)]
                if isinstance(of, _INDEXED) and MISSING not in map(self.value, calls):
                    whole = ast.Subscript(ast.Name("nanlab_of"), node.slice, ast.Load())
                    return eval(ast.unparse(whole), {**self.names(), "nanlab_of": of})
            if isinstance(node, (ast.List, ast.Tuple, ast.BinOp, ast.UnaryOp)):
                return (
                    number_of(node)
                    if not isinstance(node, ast.List)
                    else list(map(self.value, node.elts))
                )
        return MISSING

    def text(self, node: ast.AST) -> str:
        return self.source.part(node)

    def whole(self, node: ast.AST) -> str:
        """The text of an expression whose part is taken: in brackets where it needs them."""
        text = self.text(node)
        loose = isinstance(node, (ast.BinOp, ast.Compare, ast.UnaryOp, ast.BoolOp, ast.IfExp))
        return f"({text})" if loose else text

    def replaced(self, cost: float, *pairs: tuple[ast.AST, str]) -> Candidate:
        """The candidate in which these nodes have another text."""
        texts = [(node, self._loose(node, self._named(text))) for node, text in pairs]
        edits = spliced(self.source, texts)
        if len(edits) == 1 and re.fullmatch(r"(\w[\w.]*) = \1", edits[0].text):
            edits = (replace(edits[0], text=""),)
        return Candidate(cost + self.distance, edits)

    def _loose(self, node: ast.AST, text: str) -> str:
        """A text in brackets where it is a sum or a product, and a part of another one."""
        with suppress(SyntaxError):
            new = ast.parse(text, mode="eval").body
            if isinstance(new, ast.BinOp) and not isinstance(node, (ast.BinOp, ast.Constant)):
                for part in self.parts():
                    sides = [getattr(part, name, None) for name in ("left", "right", "value")]
                    if isinstance(part, (ast.BinOp, ast.Attribute)) and node in sides:
                        return text if text[0] == "(" and text[-1] == ")" else f"({text})"
        return text

    def _named(self, text: str) -> str:
        """A text with the names that the program has for torch's modules."""
        for name, module in (("F", nn.functional), ("nn", nn)):
            if self.names().get(name) is module:
                text = re.sub(rf"\b{re.escape(module.__name__)}\.", f"{name}.", text)
        return text

    def added(self, cost: float, call: ast.Call, more: str) -> Candidate:
        """The candidate in which a call has one more argument."""
        return self.replaced(cost, with_more(self.source, call, more))

    def written(self, cost: float, text: str) -> Candidate:
        """The candidate in which the statement is this one; ``{}`` stands for its own lines."""
        first, last = first_line(self.statement), self.statement.end_lineno or 0
        old = self.source.lines[first - 1 : last]
        indent = old[0][: len(old[0]) - len(old[0].lstrip())]
        own = "\n".join(row.removeprefix(indent) for row in old)
        rows = "\n".join(indent + row for row in text.replace("{}", own).splitlines())
        return Candidate(cost + self.distance, (lines_as(self.source, first, last, rows),))

    def named_number(self, number: int) -> str:
        """A whole number by a name or an attribute that the function has for it, or as it is."""
        own = getattr(self.frame.f_locals.get("self"), "__dict__", {}).items()
        known = [(n, v) for n, v in self.frame.known.items() if n.isupper() or n[:2] == "n_"]
        known += [*self.frame.f_locals.items(), *((f"self.{name}", n) for name, n in own)]
        names = [name for name, n in known if type(n) is int and n == number]
        names = names or [f"{name} - 1" for name, n in known if type(n) is int and n == number + 1]
        return names[-1] if names else str(number)

    def names(self) -> dict[str, Any]:
        """The names that the statement sees, and what they stand for."""
        return {**self.frame.known, **self.frame.f_locals}

    def result(self) -> Any:
        """What the statement bound, where that is one name; MISSING elsewhere."""
        if isinstance(self.statement, ast.Assign) and len(self.statement.targets) == 1:
            with suppress(SyntaxError):
                target = ast.unparse(self.statement.targets[0])
                return self.value(ast.parse(target, mode="eval").body)
        return MISSING


def with_more(source: Source, node: ast.Call | ast.Dict, more: str) -> tuple[ast.AST, str]:
    """A call with one more argument, or a dict with one more entry."""
    text = source.part(node)
    head = text[:-1].rstrip().rstrip(",")
    held = node.keys if isinstance(node, ast.Dict) else [*node.args, *node.keywords]
    return node, f"{head}{', ' * bool(held)}{more}{text[-1]}"


def number_of(node: ast.AST) -> Any:
    """The value of an expression of literal numbers; MISSING for another."""
    others = (ast.Name, ast.Call, ast.Attribute, ast.Slice)
    if any(isinstance(n, others) for n in ast.walk(node)):
        return MISSING
    return eval(ast.unparse(node), {"__builtins__": {}})


def _end(pair: tuple[Any, str]) -> tuple[int, int]:
    return pair[0].end_lineno, pair[0].end_col_offset


def spliced(source: Source, pairs: Sequence[tuple[ast.AST, str]]) -> tuple[Edit, ...]:
    """Edits of whole lines, in which nodes have another text."""
    lines = source.lines
    edits: list[Edit] = []
    for node, text in sorted(pairs, key=_end, reverse=True):
        first, last = node.lineno, node.end_lineno  # type: ignore[attr-defined]
        same = edits and edits[-1].first == first
        rows = edits.pop().rows() if same else lines[first - 1 : last]
        head, tail = (row.encode() for row in (rows[0], rows[-1]))
        begin, end = node.col_offset, node.end_col_offset  # type: ignore[attr-defined]
        new = head[:begin].decode() + text + tail[end:].decode()
        edits.append(lines_as(source, first, last, new))
    return tuple(reversed(edits))


def lines_as(source: Source, first: int, last: int, new: str) -> Edit:
    """Lines with another text, which is indented as it stands in the file."""
    old = "\n".join(source.lines[first - 1 : last])
    indent = old[: len(old) - len(old.lstrip())]
    text = "\n".join(row.removeprefix(indent) for row in new.splitlines())
    return Edit(source.shown, first, last, text, old)


def swapped(source: Source, first: int, middle: int, last: int) -> Edit:
    """The lines from ``middle`` to ``last`` before those from ``first``."""
    lines = source.lines
    text = "\n".join((*lines[middle - 1 : last], *lines[first - 1 : middle - 1]))
    return lines_as(source, first, last, text)


@dataclass
class Site:
    """An exception with the frames it passed, innermost first, and the program around it."""

    program: Program
    error: BaseException
    frames: list[Step]
    inner: list[FrameType]  # torch's and libraries', below the user's
    line: tuple[str, int] = ("", 0)  # that is at fault, where it is known

    @classmethod
    def of(cls, error: BaseException, line: tuple[str, int] = ("", 0)) -> Site | None:
        """That of an exception whose program can be run again."""
        known = program_of(error)
        if known is None:
            return None
        program, frames, inner = known
        return cls(program, error, frames, inner, line)

    def place(self, source: Source, statement: ast.stmt, distance: float) -> Place:
        """A statement with the frame of its function, where that is one the exception passed."""
        inside = function_around(source, statement)
        for frame, line in self.frames:
            known = frame.f_code.co_filename == source.filename
            at = innermost(source, line) if known else None
            if at is not None and function_around(source, at) is inside:
                return Place(source, statement, frame, distance)
        return Place(source, statement, self.frames[-1][0], distance)

    def statements(self) -> tuple[Place, ...]:
        """All simple statements of the program, and heads of loops."""
        return self._statements

    @cached_property
    def _statements(self) -> tuple[Place, ...]:
        kinds = (ast.Assign, ast.Expr, ast.Return, ast.AugAssign, ast.For)
        texts = self.program.texts
        rows = ((source, n) for source in texts for n in source.nodes if isinstance(n, kinds))
        return tuple(self.place(source, node, 0.0) for source, node in rows)

    @cached_property
    def fault(self) -> list[Place]:
        """The line that is said to be at fault, and the one that raised."""
        found = self.raising[:1]
        source = self.program.source(self.line[0])
        node = innermost(source, self.line[1]) if source is not None else None
        if source is not None and node is not None and node is not found[0].statement:
            found.insert(0, self.place(source, node, 0.0))
        return found

    @cached_property
    def mentioned(self) -> list[Place]:
        """Statements that the message speaks of: by an argument's name, or as what they made."""
        words = set(re.findall(r"[A-Za-z]+_\w+", self.text))
        nodes = set(re.findall(r"(\w+)Backward\b", self.text))
        found = [
            replace(place, distance=0.2)
            for place in self.statements()
            if words & {k.arg for call in place.calls() for k in call.keywords}
        ]
        for source in self.program.texts:
            for kind in source.nodes:
                if isinstance(kind, ast.ClassDef) and kind.name in nodes:
                    for each in ast.walk(kind):
                        function = function_around(source, each) if is_return(each) else None
                        if getattr(function, "name", "") == "backward":
                            found.append(self.place(source, each, -0.6))  # type: ignore[arg-type]
        found += [
            replace(place, distance=0.2)
            for place in self.statements()
            if is_return(place.statement) and getattr(place.function, "name", "") in words
        ]
        places = (*self.raising, *self.bindings)
        called = [at.value(call.func) for at in places for call in at.calls()]
        for place in (each for one in (*self._given, *called) for each in self.returns(one)):
            made = (self.binding(place, node) for node in place.parts())
            own = [place, *(each for each in made if each is not None)]
            found += [replace(each, distance=0.3) for each in own]
        held = [v for f in self.inner for v in f.f_locals.values() if isinstance(v, Tensor)]
        read = names_in(self.raising[0].statement)
        for place in self.statements():  # what was put into a list or a dict
            value: Any = getattr(place.statement, "value", None)
            targets = getattr(place.statement, "targets", [])
            owners = {spelled(t.value) for t in targets if isinstance(t, ast.Subscript)}
            if owners & read and any(place.value(value) is each for each in held):
                found.append(replace(place, distance=0.1))
        for module in self.modules:  # what a module holds on to
            for name, value in vars(module).items():
                if any(value is each for each in held):
                    found += [
                        replace(place, distance=0.1)
                        for place in self.statements()
                        if f"self.{name}" in bound_by(place.statement)
                        and not isinstance(getattr(place.statement, "value", None), ast.Constant)
                    ]
        return found

    def returns(self, function: Any) -> Iterator[Place]:
        """The statements by which a function, or a module, of the program gives its result."""
        known = type(function).forward if isinstance(function, nn.Module) else function
        code = getattr(getattr(known, "__func__", known), "__code__", None)
        if code is not None and self.program.source(code.co_filename):
            for place in self.statements():
                heads = [place.function, *getattr(place.function, "decorator_list", [])]
                lines = {getattr(head, "lineno", 0) for head in heads}
                if is_return(place.statement) and code.co_firstlineno in lines:
                    yield place

    @property
    def _given(self) -> list[FunctionType]:
        """Functions of the program that the ones that raised were given, and hooks."""
        known = [v for frame in self.inner for v in frame.f_locals.values()]
        hooks = (h for m in self.modules for n, h in vars(m).items() if n.endswith("_hooks"))
        known += [hook for each in hooks if isinstance(each, dict) for hook in each.values()]
        return [each for each in known if isinstance(each, FunctionType)]

    @cached_property
    def modules(self) -> list[nn.Module]:
        known = [v for f, _ in self.frames for v in f.f_locals.values()]
        built = [v for v in known if isinstance(v, nn.Module) and "_modules" in vars(v)]
        with suppress(TypeError):  # torch does not walk through those that have no hash
            return [each for v in built for each in v.modules()]
        return []

    @cached_property
    def raising(self) -> list[Place]:
        """The statement that raised, and the calls that led to it."""
        found = []
        columns: dict[Any, int] = {}  # of what each line was at, which may hold several statements
        for tb in _tracebacks(self.error):
            code, line = tb.tb_frame.f_code, tb.tb_lineno
            _, _, column, _ = list(code.co_positions())[tb.tb_lasti // 2]
            columns[code, line] = 0 if column is None else column
        for depth, (frame, line) in enumerate(self.frames):
            source = self.program.source(frame.f_code.co_filename)
            column = columns.get((frame.f_code, line))
            statement = innermost(source, line, column) if source is not None else None
            if source is not None and statement is not None:
                found.append(Place(source, statement, frame, 0.6 * depth))
        return found

    @cached_property
    def failed(self) -> list[ast.AST]:
        """The part of the line that raised, which did: none where that is not known."""
        code = self.frames[0][0].f_code
        steps = [tb for tb in _tracebacks(self.error) if tb.tb_frame.f_code is code]
        positions = list(steps[-1].tb_frame.f_code.co_positions())[steps[-1].tb_lasti // 2]
        return [n for n in self.raising[0].parts() if _position(n) == positions]

    @cached_property
    def returned(self) -> set[int]:
        """The nodes of calls of the line that raised that had returned: arguments of the one that
        raised."""
        raised = self.failed
        calls = [n for r in raised for n in ast.walk(r) if isinstance(n, ast.Call) and n is not r]
        calls = [call for call in calls if callee(call) != "size"]  # it only looks
        return {id(node) for call in calls for node in ast.walk(call)}

    @cached_property
    def bindings(self) -> list[Place]:
        """Statements that bound what the raising ones read: variables, attributes, loops' names."""
        found: list[Place] = []
        seen = {id(place.statement) for place in self.raising}
        todo = list(self.raising)
        while todo and len(found) < 24:
            place = todo.pop(0)
            for node in place.parts():
                for bound in (self.binding(place, node), self.in_last_round(place, node)):
                    if bound is not None and id(bound.statement) not in seen:
                        seen.add(id(bound.statement))
                        found.append(bound)
                        if bound.distance < 1.2:
                            todo.append(bound)
        return found

    def binding(self, place: Place, node: ast.AST) -> Place | None:
        name = spelled(node)
        if not name or not isinstance(getattr(node, "ctx", None), ast.Load):
            return None
        near = place.distance + 0.3
        if name.startswith("self."):
            for source in (place.source, *self.program.sources):
                for statement in source.nodes:
                    if name in bound_by(statement):
                        return Place(source, statement, place.frame, near)  # type: ignore[arg-type]
            return None
        own = [s for s in place.source.nodes if name in bound_by(s)]
        before = [s for s in own if s.lineno < place.statement.lineno]  # type: ignore[attr-defined]
        inside = [s for s in before if function_around(place.source, s) is place.function]
        found = inside or [s for s in before if function_around(place.source, s) is None]
        if found:
            last = max(found, key=lambda s: s.lineno)  # type: ignore[attr-defined]
            return Place(place.source, last, place.frame, near)  # type: ignore[arg-type]
        for source in reversed(self.program.sources):
            if source is not place.source:
                for statement in reversed(source.tree.body):
                    if name in bound_by(statement):
                        return Place(source, statement, place.frame, near)
        given = self.handed(place, name)
        return replace(given[0][0], distance=near) if len(given) == 1 else None

    def in_last_round(self, place: Place, node: ast.AST) -> Place | None:
        """The later statement of a loop that bound a name in the round before."""
        name, line = spelled(node), place.statement.lineno
        if not name or not isinstance(getattr(node, "ctx", None), ast.Load):
            return None
        loops = [n for n in place.source.nodes if isinstance(n, (ast.For, ast.While))]
        around = [n for n in loops if n.lineno < line <= (n.end_lineno or 0)]
        rows: list[Any] = [row for loop in around for row in ast.walk(loop)]
        later = [row for row in rows if name in bound_by(row) and row.lineno > line]
        return Place(place.source, later[-1], place.frame, place.distance + 0.3) if later else None

    def handed(self, place: Place, name: str) -> list[tuple[Place, ast.expr]]:
        """The statements that call the constructor around a place, each with what it gives for a
        parameter of this name."""
        function = place.function
        parameters = function.args.args if function is not None else []
        names = [each.arg for each in parameters]
        kind = place.in_class.name if place.in_class is not None else ""
        if function is None or function.name != "__init__" or name not in names[1:]:
            return []
        back = zip(reversed(names), reversed(function.args.defaults), strict=False)
        default, found = dict(back).get(name), []
        for source in self.program.texts:
            for call in (n for n in source.nodes if isinstance(n, ast.Call)):
                own = innermost(source, call.lineno)
                if callee(call) == kind and own is not None:
                    given: Any = {k.arg: k.value for k in call.keywords} | dict(
                        zip(names[1:], call.args, strict=False)
                    )
                    found.append((self.place(source, own, 0.0), given.get(name, default)))
        return [(at, given) for at, given in found if given is not None]

    def size(self, place: Place, node: ast.expr) -> Any:
        """A whole number that a constructor computed from what it was given; MISSING where that
        is not known, or was another each time."""
        names: dict[str, Any] = {}
        for each in ast.walk(node):
            if isinstance(each, (ast.Call, ast.Attribute, ast.Subscript)):
                return MISSING
            if isinstance(each, ast.Name):
                values = [at.value(given) for at, given in self.handed(place, each.id)]
                numbers = {value if type(value) is int else MISSING for value in values}
                names[each.id] = numbers.pop() if len(numbers) == 1 else MISSING
        with suppress(Exception):
            if names and all(type(value) is int for value in names.values()):
                found = eval(ast.unparse(node), {"__builtins__": {}}, names)
                return found if type(found) is int else MISSING
        return MISSING

    @cached_property
    def roles(self) -> dict[int, str]:
        """The parameters that the arguments of the program's calls are given for."""
        found: dict[int, str] = {}
        for source in self.program.texts:
            for call in source.nodes:
                if not isinstance(call, ast.Call):
                    continue
                place = replace(self.raising[0], source=source)
                function = place.value(call.func)
                if function is MISSING:
                    function = getattr(Tensor, callee(call), None)
                names = [name for name in signature(function) if name != "self"]
                given = zip(names, call.args, strict=False)
                found |= {id(argument): name for name, argument in given}
                found |= {id(each.value): each.arg for each in call.keywords if each.arg}
        return found

    def given(self, node: ast.AST) -> Any:
        """What an argument was, by the frames below the line that raised; MISSING: of no call
        there."""
        name = self.roles.get(id(node))
        below = (frame.f_locals for frame in self.inner)
        return next((names[name] for names in below if name in names), MISSING)

    def computed(self, node: ast.AST) -> Any:
        """The tensor that an argument of the call that raised was; MISSING: of another."""
        given = (n for call in self.failed for n in getattr(call, "args", []))
        value = self.given(node) if any(n is node for n in given) else MISSING
        return value if isinstance(value, Tensor) else MISSING

    @cached_property
    def running(self) -> list[nn.Module]:
        """The modules whose ``forward`` the exception passed."""
        frames = self.inner + [frame for frame, _ in self.frames]
        known = (frame.f_locals.get("self") for frame in frames)
        return [each for each in known if isinstance(each, nn.Module)]

    @cached_property
    def builders(self) -> list[Place]:
        """Statements that build the layers which were running, and classes around them."""
        kinds = {type(module).__name__: 0.1 for module in self.running}
        for module in self.modules:  # what they made was refused
            kinds.setdefault(type(module).__name__, 0.4)
        for source in self.program.texts:  # functions that give such layers
            for function in (n for n in source.nodes if isinstance(n, Function)):
                made = {callee(n) for row in rows_of(function) for n in ast.walk(row)} & {*kinds}
                if made and any(map(is_return, ast.walk(function))):
                    kinds.setdefault(function.name, 0.2 + min(kinds[name] for name in made))
        top = self.raising[-1].frame if self.raising else None
        found = []
        for source in self.program.texts:
            for statement in source.nodes:
                if isinstance(statement, (ast.Assign, ast.Expr, ast.Return, ast.AugAssign)):
                    calls = [c for c in ast.walk(statement) if isinstance(c, ast.Call)]
                    called = {callee(c) for c in calls if callee(c) != "__init__" or c.args}
                    if "__init__" in called and top is not None:  # it builds the rest of its class
                        own = Place(source, statement, top, 0.0).in_class
                        called |= {own.name} if own is not None else set()
                    if called & {*kinds} and top is not None:
                        distance = min(kinds[name] for name in called & {*kinds})
                        found.append(Place(source, statement, top, distance))
        return found

    @cached_property
    def places(self) -> list[Place]:
        """All of them, the nearest of each statement."""
        found: dict[int, Place] = {}
        for place in (*self.fault, *self.raising, *self.bindings, *self.builders, *self.mentioned):
            old = found.get(id(place.statement))
            if old is None or place.distance < old.distance:
                found[id(place.statement)] = place
        return list(found.values())

    @property
    def calls(self) -> list[tuple[Any, ...]]:
        """All calls of the places."""
        return [(place, call) for place in self.places for call in place.calls()]

    @property
    def operands(self) -> list[tuple[Any, ...]]:
        """All operands of the places, each with its role."""
        return [(place, *each) for place in self.places for each in place.operands]

    @property
    def at_error(self) -> list[Place]:
        """The statement that raised."""
        return self.raising[:1]

    @property
    def bound(self) -> list[Place]:
        """The lines at fault, and what bound their names."""
        return [*self.fault, *self.bindings]

    @property
    def sized(self) -> list[Place]:
        """Statements whose sizes may be wrong, though they ran."""
        return [*self.builders, *self.bindings, *self.mentioned]

    @cached_property
    def text(self) -> str:
        return str(self.error)

    @property
    def raised(self) -> str:
        """The text of the statement that raised."""
        return self.raising[0].text(self.raising[0].statement)

    @cached_property
    def batch(self) -> set[int]:
        """Leading sizes that several tensors of data share: no layer is built for them."""
        known = {id(v): v for frame, _ in self.frames for v in frame.f_locals.values()}.values()
        sizes = [len(v) for v in known if isinstance(v, Tensor) and v.dim() and not v.requires_grad]
        return {size for size in sizes if sizes.count(size) > 1}

    @property
    def _loops(self) -> list[ast.For]:
        return [n for s in self.program.sources for n in s.nodes if isinstance(n, ast.For)]

    @cached_property
    def rounds(self) -> list[str]:
        """How often the loops of the program run, as it could be written."""
        texts = [ast.unparse(n.iter) for n in self._loops]
        numbers = sorted({int(t[6:-1]) for t in texts if re.fullmatch(r"range\(\d+\)", t)})
        names = [t for t in texts if hasattr(self.frames[-1][0].f_locals.get(t), "__len__")]
        return [f"len({name})" for name in names] + [str(number) for number in numbers]

    @cached_property
    def all_rounds(self) -> list[str]:
        """How often a step runs that stands in loops within loops, as it could be written."""
        around = [n for n in self._loops if ".step(" in ast.unparse(n)]
        inner = [n for n in around if not any(n is not o and o in ast.walk(n) for o in around)]
        chains = [[o for o in around if n in ast.walk(o)] for n in inner]
        return [" * ".join(map(_count, chain)) for chain in chains if len(chain) > 1]

    @cached_property
    def told(self) -> list[int]:
        """Numbers of the message, and of the attributes of a layer that it names."""
        words = re.findall(r"\b[a-z]+_[a-z]+\b", self.text)
        layers = (f.f_locals.get("self") for f in self.inner)
        known = [vars(m).get(w) for m in layers if isinstance(m, nn.Module) for w in words]
        found = [int(n) for n in re.findall(r"(?:(?<=\dx)|(?<![\w.])-?)\d+", self.text)]
        return found + [n for n in dict.fromkeys(known) if type(n) is int]

    @cached_property
    def confronted(self) -> set[tuple[int, int]]:
        """Numbers that differ between two shapes of the message: ``(2, 3, 6), got [1, 3, 6]``."""
        if "target size" in self.text:  # the targets are what they are
            return set()
        found = re.findall(r"[(\[]([\d, ]+)[)\]], got [(\[]([\d, ]+)[)\]]", self.text)
        both = [[re.findall(r"\d+", shape) for shape in each] for each in found]
        pairs = [pair for a, b in both if len(a) == len(b) for pair in zip(b, a, strict=True)]
        pairs += re.findall(r"actual (\d+) vs (\d+)", self.text)
        return {(int(a), int(b)) for a, b in pairs if a != b} | self.looked_up

    @cached_property
    def refused(self) -> set[tuple[int, int]]:
        """The size that a layer was built for, and that of its input."""
        told = (
            r"to have (\d+) channels, but got (\d+)",
            r"running_mean should contain (?P<got>\d+) elements not (?P<own>\d+)",
            r"normalized_shape=\[(\d+)\].*size\[[\d, ]*?(\d+)\]",
            r"equal to input_size\. Expected (\d+), got (\d+)",
            r"\(\d+x(?P<got>\d+) and (?P<own>\d+)x\d+\)",
        )
        found = [match for each in told if (match := re.search(each, self.text))]
        named = [match.groupdict() or {"own": match[1], "got": match[2]} for match in found]
        met = re.search(r"tensor a \((\d+)\) must match the size of tensor b \((\d+)\)", self.text)
        pair = (int(met[1]), int(met[2])) if met is not None else (0, 0)
        both = {pair, pair[::-1]} if abs(pair[0] - pair[1]) == 1 else set()  # as with a class token
        return {(int(each["own"]), int(each["got"])) for each in named} | both

    @cached_property
    def met(self) -> set[int]:
        """The two sizes that must be the same, as the message says."""
        told = re.search(r"size of tensor a \((\d+)\) must match .* tensor b \((\d+)\)", self.text)
        return {int(size) for size in told.groups()} if told is not None else set()

    @cached_property
    def rows(self) -> int:
        """The rows of the table in which something was looked up; 0: nothing was."""
        tables = [f.f_locals.get("weight") for f in self.inner if f.f_code.co_name == "embedding"]
        return next((len(table) for table in tables if isinstance(table, Tensor)), 0)

    @cached_property
    def looked_up(self) -> set[tuple[int, int]]:
        """The rows of a table, or classes, and how many there would have to be for the largest
        index."""
        for frame in self.inner:
            own, named = frame.f_locals, frame.f_code.co_name
            losses = named == "cross_entropy"
            rows, index = (
                own.get("input" if losses else "weight"),
                own.get("target", own.get("input")),
            )
            if named in ("embedding", "cross_entropy") and isinstance(rows, Tensor):
                count = rows.shape[min(losses, rows.dim() - 1)]
                most = elements(index) if isinstance(index, Tensor) else ()
                wanted = int(max(most, default=0)) + 1
                return {(count, wanted)} if wanted > count else set()
        return set()

    @cached_property
    def sizes(self) -> list[int]:
        """Numbers that a size could rather be: of the message, of shapes, of indices."""
        found = [n for n in (*self.told, *sum(self.looked_up, ())) if n > 0]
        if re.search(r"out of|outside", self.text):
            found += [n + 1 for n in found]
        for place in self.raising[:2]:
            for node in place.parts():
                value = place.value(node)
                if isinstance(value, Tensor) and value.dim():
                    found += value.shape
                    found.append(math.prod(value.shape[1:]))
                    if is_whole(value) and 0 < value.numel() < 1 << 20:
                        found.append(int(max(elements(value), default=0)) + 1)
                elif isinstance(value, int) and not isinstance(value, bool) and value > 0:
                    found += [value, value + 1]
                elif hasattr(value, "__len__") and not isinstance(value, str):
                    with suppress(Exception):
                        found.append(len(value))
        for a in self.told:
            for b in self.told:
                if 1 < b < a and a % b == 0:
                    found.append(a // b)
        for frame in self.inner:
            known = [v.shape for v in frame.f_locals.values() if isinstance(v, Tensor)]
            for shape in (each for each in known if len(each) > 1):
                found += [math.prod(shape[1:]), shape[-1]]
        return list(dict.fromkeys(int(n) for n in found if 0 < n < 1 << 20))


def _count(loop: ast.For) -> str:
    """How often a loop runs, as it could be written."""
    head: Any = loop.iter
    while callee(head) == "enumerate":
        head = head.args[0]
    bounds = head.args if callee(head) == "range" else []
    return ast.unparse(bounds[0]) if len(bounds) == 1 else f"len({ast.unparse(head)})"


def is_whole(value: Tensor) -> bool:
    """Whether the elements of a tensor are whole numbers, by its dtype."""
    return not value.is_floating_point() and not value.is_complex()


_LARGE = 1 << 20  # elements of a tensor that are sorted


def elements(value: Any) -> set[Any]:
    """The numbers of a tensor, each once; of a very large one, those of its first part and its
    limits. None where they cannot be read: it has no memory, or belongs to a transformation that
    has ended."""
    with suppress(RuntimeError, NotImplementedError):
        own = value.detach()
        if own.numel() > _LARGE and not own.is_complex():
            first, limits = own.flatten()[:_LARGE], torch.stack(own.aminmax())
            own = torch.cat((first, limits))
        return set(own.unique().tolist())
    return set()


def _defaults(function: Any) -> dict[str, Any]:
    return {n: p.default for n, p in inspect.signature(function).parameters.items()}


def signature(function: Any) -> dict[str, Any]:
    """The parameters of a function with their defaults; from its documentation if built in."""
    with suppress(Exception):
        target = function.forward if isinstance(function, nn.Module) else function
        made = getattr(target, "__init__", None) if isinstance(target, type) else None
        for form in get_overloads(made)[:1] if made is not None else ():  # of an LSTM
            return {n: default for n, default in _defaults(form).items() if n != "self"}
        if (known := _defaults(target)).keys() != {"args", "kwargs"}:  # of one that chooses another
            return known
    name, told = getattr(function, "__name__", ""), getattr(function, "__doc__", "") or ""
    head = rf"(?:\.\. function:: )?(?:\w+\.)*{name}\((.*?)\)"
    forms = re.findall(rf"(?m)^{head}", told) or re.findall(rf"^\s+{head}", told)
    parts = max(forms, key=len, default="").split(",")
    pairs = [each.strip().partition("=")[::2] for each in parts]
    flags: dict[str, Any] = {"True": True, "False": False, "0": 0}
    return {n: flags.get(word, inspect.Parameter.empty) for n, word in pairs if n not in ("", "*")}


def _tracebacks(error: BaseException) -> Iterator[TracebackType]:
    at = error.__traceback__
    while at is not None:
        yield at
        at = at.tb_next


def _position(node: Any) -> tuple[int | None, ...]:
    names = ("lineno", "end_lineno", "col_offset", "end_col_offset")
    return tuple(getattr(node, name, None) for name in names)


def is_return(node: ast.AST) -> bool:
    return isinstance(node, ast.Return) and node.value is not None


def is_text(row: ast.stmt) -> bool:
    """Whether a statement is a docstring."""
    return isinstance(row, ast.Expr) and isinstance(row.value, ast.Constant)


def innermost(source: Source, line: int, column: int | None = None) -> ast.stmt | None:
    """The innermost statement that holds a line, or is decorated there; of several in the line,
    that of a column."""
    own = source.decorated.get(line)
    rows = _holding(source, line, ast.stmt)
    if column is not None and sum(row.lineno == line for row in rows) > 1:
        rows = [row for row in rows if _start(row) <= (line, column)] or rows
    return own or max(rows, key=_start, default=None)


def first_line(statement: Any) -> int:
    """The line that a statement begins at: that of its first decorator where it has one."""
    heads = (statement, *getattr(statement, "decorator_list", []))
    return min(int(node.lineno) for node in heads)


def function_around(source: Source, statement: Any) -> Function | None:
    """The innermost function around a statement."""
    line: int = statement.lineno
    around = (each for each in _holding(source, line, Function) if each.lineno < line)
    return max(around, key=_start, default=None)


def own_nodes(function: Function) -> Iterator[ast.AST]:
    """The nodes of a function without those of the functions in it."""
    todo: list[ast.AST] = [*function.body]
    while todo:
        node = todo.pop(0)
        yield node
        if not isinstance(node, Function | ast.Lambda | ast.ClassDef):
            todo += ast.iter_child_nodes(node)


def unread(function: ast.AST | None) -> list[str]:
    """Arguments that a function takes and never reads."""
    if not isinstance(function, Function):
        return []
    read = {n.id for n in ast.walk(function) if isinstance(n, ast.Name)}
    return [a.arg for a in function.args.args if a.arg not in read | {"self", "cls"}]


def _holding(source: Source, line: int, kind: Any) -> list[Any]:
    return [node for node in source.holding.get(line, ()) if isinstance(node, kind)]


def _start(node: Any) -> tuple[int, int]:
    return node.lineno, node.col_offset


def spelled(node: ast.AST) -> str:
    """``x`` or ``self.head``; empty for anything else."""
    if isinstance(node, ast.Name):
        return node.id
    of = node.value if isinstance(node, ast.Attribute) else None
    own = getattr(of, "id", "") == "self" or getattr(of, "owner", False)
    return f"self.{node.attr}" if own else ""  # type: ignore[attr-defined]


def callee(node: ast.AST) -> str:
    """The last name of the function that a call calls; empty for anything else."""
    function = getattr(node, "func", None)
    return getattr(function, "attr", getattr(function, "id", ""))


def bound_by(statement: ast.AST) -> list[str]:
    """The names that a statement binds."""
    if isinstance(statement, ast.Assign):
        targets = statement.targets
    elif isinstance(statement, (ast.AnnAssign, ast.AugAssign, ast.For)):
        targets = [statement.target]
    else:
        call: Any = getattr(statement, "value", statement)
        own = callee(call) == "register_buffer" and spelled(call.func) and call.args
        return [f"self.{getattr(call.args[0], 'value', '')}"] if own else []
    parts = [e for t in targets for e in (t.elts if isinstance(t, (ast.Tuple, ast.List)) else [t])]
    return [name for part in parts if (name := spelled(part))]


def bound_value(place: Place | None, name: str) -> Any:
    """The expression that a statement binds a name to: all of several names, without a name."""
    statement: Any = place.statement if place is not None else None
    value = getattr(statement, "value", None)
    if name and isinstance(value, ast.Tuple) and isinstance(statement.targets[0], ast.Tuple):
        return dict(zip(bound_by(statement), value.elts, strict=False)).get(name)
    return value


def rows_of(block: ast.AST) -> list[ast.stmt]:
    """The statements of a block; none of anything else."""
    body = getattr(block, "body", None)
    return body if isinstance(body, list) else []


def names_in(node: ast.AST) -> set[str]:
    """The names and attributes of ``self`` that a part of the program has."""
    return {name for each in ast.walk(node) if (name := spelled(each))} - {"self"}
