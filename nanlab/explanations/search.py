"""Small edits with which a call that raised could be legal, by what its operands are.

No message is looked up. The values in the frames of the exception say what kind of thing each
operand is; each kind has its own small edits, at the line that raised, where its operands were
bound, where the layers were built and in the calls above. They are tried in the order of their
cost, which says how common such a mistake is.
"""

from __future__ import annotations

import ast
import builtins
import difflib
import inspect
import math
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property
from types import FrameType
from typing import Any

import numpy as np
import torch
from torch import nn

from nanlab.explanations.trial import Program, Source, Step, edited, program_of
from nanlab.findings.rule import Edit
from nanlab.operators import having
from nanlab.program.expression import functions_around

Tensor = torch.Tensor
MISSING = object()
Function = ast.FunctionDef | ast.AsyncFunctionDef
_MOST = 600  # edits that are tried for one exception


@dataclass(frozen=True)
class Candidate:
    """An edit, and how unusual the mistake is that it would mend."""

    cost: float
    edits: tuple[Edit, ...]


@dataclass(frozen=True)
class Place:
    """A statement of the program that has to do with the exception."""

    source: Source
    statement: ast.stmt
    frame: FrameType  # in which its names are looked up
    distance: float  # added to the cost of what is changed here

    def calls(self) -> list[ast.Call]:
        return [node for node in self.parts() if isinstance(node, ast.Call)]

    @property
    def function(self) -> Function | None:
        """The innermost function around the statement."""
        return _function(self.source.tree, self.statement)

    def parts(self) -> list[ast.AST]:
        """The nodes of a statement; of a block, those of its first line."""
        body = {id(s) for name in ("body", "orelse") for s in getattr(self.statement, name, [])}
        found: list[ast.AST] = []
        todo: list[ast.AST] = [self.statement]
        while todo:
            node = todo.pop(0)
            if id(node) not in body and not isinstance(node, ast.Lambda):
                found.append(node)
                todo += ast.iter_child_nodes(node)
        return found

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
            if isinstance(node, ast.Subscript) and (of := self.value(node.value)) is not MISSING:
                return of[ast.literal_eval(node.slice)]
            if isinstance(node, (ast.List, ast.Tuple, ast.BinOp, ast.UnaryOp)):
                return (
                    _number(node)
                    if not isinstance(node, ast.List)
                    else list(map(self.value, node.elts))
                )
        return MISSING

    def text(self, node: ast.AST) -> str:
        return ast.get_source_segment(self.source.text, node) or ""

    def replaced(self, cost: float, *pairs: tuple[ast.AST, str]) -> Candidate:
        """The candidate in which these nodes have another text."""
        edits = _spliced(self.source, pairs)
        if len(edits) == 1 and re.fullmatch(r"(\w[\w.]*) = \1", edits[0].text):
            edits = (replace(edits[0], text=""),)
        return Candidate(cost + self.distance, edits)

    def written(self, cost: float, text: str) -> Candidate:
        """The candidate in which the statement is this one; ``{}`` stands for its own lines."""
        first, last = self.statement.lineno, self.statement.end_lineno or 0
        old = self.source.lines[first - 1 : last]
        indent = old[0][: len(old[0]) - len(old[0].lstrip())]
        own = "\n".join(row.removeprefix(indent) for row in old)
        rows = "\n".join(indent + row for row in text.replace("{}", own).splitlines())
        return Candidate(cost + self.distance, (_lines(self.source, first, last, rows),))

    def names(self) -> dict[str, Any]:
        """The names that the statement sees, and what they stand for."""
        return {**self.frame.f_globals, **self.frame.f_locals}

    def result(self) -> Any:
        """What the statement bound, where that is one name; MISSING elsewhere."""
        if isinstance(self.statement, ast.Assign) and len(self.statement.targets) == 1:
            with suppress(SyntaxError):
                target = ast.unparse(self.statement.targets[0])
                return self.value(ast.parse(target, mode="eval").body)
        return MISSING


def _number(node: ast.AST) -> Any:
    """The value of an expression of literal numbers; MISSING for another."""
    if any(isinstance(n, (ast.Name, ast.Call, ast.Attribute)) for n in ast.walk(node)):
        return MISSING
    return eval(ast.unparse(node), {"__builtins__": {}})


def _end(pair: tuple[Any, str]) -> tuple[int, int]:
    return pair[0].end_lineno, pair[0].end_col_offset


def _spliced(source: Source, pairs: Sequence[tuple[ast.AST, str]]) -> tuple[Edit, ...]:
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
        edits.append(_lines(source, first, last, new))
    return tuple(reversed(edits))


def _lines(source: Source, first: int, last: int, new: str) -> Edit:
    """Lines with another text, which is indented as it stands in the file."""
    old = "\n".join(source.lines[first - 1 : last])
    indent = old[: len(old) - len(old.lstrip())]
    text = "\n".join(row.removeprefix(indent) for row in new.splitlines())
    return Edit(source.shown, first, last, text, old)


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
        inside = _function(source.tree, statement)
        for frame, line in self.frames:
            known = frame.f_code.co_filename == source.filename
            at = _innermost(source.tree, line) if known else None
            if at is not None and _function(source.tree, at) is inside:
                return Place(source, statement, frame, distance)
        return Place(source, statement, self.frames[-1][0], distance)

    def statements(self) -> Iterator[Place]:
        """All simple statements of the program, and heads of loops."""
        for source in self.program.texts:
            for node in ast.walk(source.tree):
                if isinstance(node, (ast.Assign, ast.Expr, ast.Return, ast.AugAssign, ast.For)):
                    yield self.place(source, node, 0.0)

    @cached_property
    def fault(self) -> list[Place]:
        """The line that is said to be at fault, and the one that raised."""
        found = self.raising[:1]
        source = self.program.source(self.line[0])
        node = _innermost(source.tree, self.line[1]) if source is not None else None
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
            for kind in ast.walk(source.tree):
                if isinstance(kind, ast.ClassDef) and kind.name in nodes:
                    for each in ast.walk(kind):
                        function = _function(source.tree, each) if _is_return(each) else None
                        if getattr(function, "name", "") == "backward":
                            found.append(self.place(source, each, -0.6))  # type: ignore[arg-type]
        found += [
            replace(place, distance=0.2)
            for place in self.statements()
            if _is_return(place.statement) and getattr(place.function, "name", "") in words
        ]
        held = [v for f in self.inner for v in f.f_locals.values() if isinstance(v, Tensor)]
        for module in self._modules:  # what a module holds on to
            for name, value in vars(module).items():
                if any(value is each for each in held):
                    found += [
                        replace(place, distance=0.1)
                        for place in self.statements()
                        if f"self.{name}" in _bound(place.statement)
                        and not isinstance(getattr(place.statement, "value", None), ast.Constant)
                    ]
        return found

    @cached_property
    def _modules(self) -> list[nn.Module]:
        known = [v for f, _ in self.frames for v in f.f_locals.values()]
        built = [v for v in known if isinstance(v, nn.Module) and "_modules" in vars(v)]
        return [each for v in built for each in v.modules()]

    @cached_property
    def raising(self) -> list[Place]:
        """The statement that raised, and the calls that led to it."""
        found = []
        for depth, (frame, line) in enumerate(self.frames):
            source = self.program.source(frame.f_code.co_filename)
            statement = _innermost(source.tree, line) if source is not None else None
            if source is not None and statement is not None:
                found.append(Place(source, statement, frame, 0.6 * depth))
        return found

    @cached_property
    def bindings(self) -> list[Place]:
        """Statements that bound what the raising ones read: variables, attributes, loops' names."""
        found: list[Place] = []
        seen = {id(place.statement) for place in self.raising}
        todo = list(self.raising)
        while todo and len(found) < 24:
            place = todo.pop(0)
            for node in place.parts():
                bound = self.binding(place, node)
                if bound is not None and id(bound.statement) not in seen:
                    seen.add(id(bound.statement))
                    found.append(bound)
                    if bound.distance < 1.2:
                        todo.append(bound)
        return found

    def binding(self, place: Place, node: ast.AST) -> Place | None:
        name = _spelled(node)
        if not name or not isinstance(getattr(node, "ctx", None), ast.Load):
            return None
        near = place.distance + 0.3
        if name.startswith("self."):
            for source in (place.source, *self.program.sources):
                for statement in ast.walk(source.tree):
                    if name in _bound(statement):
                        return Place(source, statement, place.frame, near)  # type: ignore[arg-type]
            return None
        own = [s for s in ast.walk(place.source.tree) if name in _bound(s)]
        before = [s for s in own if s.lineno < place.statement.lineno]  # type: ignore[attr-defined]
        inside = [s for s in before if _function(place.source.tree, s) is place.function]
        found = inside or [s for s in before if _function(place.source.tree, s) is None]
        if found:
            last = max(found, key=lambda s: s.lineno)  # type: ignore[attr-defined]
            return Place(place.source, last, place.frame, near)  # type: ignore[arg-type]
        for source in reversed(self.program.sources):
            if source is not place.source:
                for statement in reversed(source.tree.body):
                    if name in _bound(statement):
                        return Place(source, statement, place.frame, near)
        return None

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
        for module in self._modules:  # what they made was refused
            kinds.setdefault(type(module).__name__, 0.4)
        top = self.raising[-1].frame if self.raising else None
        found = []
        for source in self.program.texts:
            for statement in ast.walk(source.tree):
                if isinstance(statement, (ast.Assign, ast.Expr, ast.Return, ast.AugAssign)):
                    called = {_called(c) for c in ast.walk(statement) if isinstance(c, ast.Call)}
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

    @cached_property
    def text(self) -> str:
        return str(self.error)

    @cached_property
    def batch(self) -> set[int]:
        """Leading sizes that several tensors of data share: no layer is built for them."""
        known = self.frames[-1][0].f_locals.values()
        sizes = [len(v) for v in known if isinstance(v, Tensor) and v.dim() and not v.requires_grad]
        return {size for size in sizes if sizes.count(size) > 1}

    @cached_property
    def rounds(self) -> list[str]:
        """How often the loops of the program run, as it could be written."""
        loops = [
            n for s in self.program.sources for n in ast.walk(s.tree) if isinstance(n, ast.For)
        ]
        texts = [ast.unparse(n.iter) for n in loops]
        numbers = sorted({int(t[6:-1]) for t in texts if re.fullmatch(r"range\(\d+\)", t)})
        names = [t for t in texts if hasattr(self.frames[-1][0].f_locals.get(t), "__len__")]
        return [f"len({name})" for name in names] + [str(number) for number in numbers]

    @cached_property
    def told(self) -> list[int]:
        """Numbers of the message."""
        return [int(n) for n in re.findall(r"(?:(?<=\dx)|(?<![\w.])-?)\d+", self.text)]

    @cached_property
    def sizes(self) -> list[int]:
        """Numbers that a size could rather be: of the message, of shapes, of indices."""
        found = [n for n in self.told if n > 0]
        if re.search(r"out of|outside", self.text):
            found += [n + 1 for n in found]
        for place in self.raising[:2]:
            for node in place.parts():
                value = place.value(node)
                if isinstance(value, Tensor) and value.dim():
                    found += value.shape
                    found.append(math.prod(value.shape[1:]))
                    if not value.is_floating_point() and 0 < value.numel() < 1 << 20:
                        found.append(int(value.max()) + 1)
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
            found += [
                math.prod(v.shape[1:])
                for v in frame.f_locals.values()
                if isinstance(v, Tensor) and v.dim() > 1
            ]
        return list(dict.fromkeys(int(n) for n in found if 0 < n < 1 << 20))


def _is_return(node: ast.AST) -> bool:
    return isinstance(node, ast.Return) and node.value is not None


def _innermost(tree: ast.Module, line: int) -> ast.stmt | None:
    found = [
        node
        for node in ast.walk(tree)
        if isinstance(node, ast.stmt) and node.lineno <= line <= (node.end_lineno or node.lineno)
    ]
    return max(found, key=lambda node: (node.lineno, node.col_offset), default=None)


def _function(tree: ast.Module, statement: ast.AST) -> Function | None:
    """The innermost function around a statement."""
    line: int = statement.lineno  # type: ignore[attr-defined]
    around = (each for each in functions_around(tree, line) if each.lineno < line)
    return max(around, key=lambda node: node.lineno, default=None)


def _spelled(node: ast.AST) -> str:
    """``x`` or ``self.head``; empty for anything else."""
    if isinstance(node, ast.Name):
        return node.id
    own = isinstance(node, ast.Attribute) and getattr(node.value, "id", "") == "self"
    return f"self.{node.attr}" if own else ""  # type: ignore[attr-defined]


def _called(node: ast.AST) -> str:
    """The last name of the function that a call calls; empty for anything else."""
    function = getattr(node, "func", None)
    return getattr(function, "attr", getattr(function, "id", ""))


def _bound(statement: ast.AST) -> list[str]:
    """The names that a statement binds."""
    if isinstance(statement, ast.Assign):
        targets = statement.targets
    elif isinstance(statement, (ast.AnnAssign, ast.AugAssign, ast.For)):
        targets = [statement.target]
    else:
        return []
    parts = [e for t in targets for e in (t.elts if isinstance(t, (ast.Tuple, ast.List)) else [t])]
    return [name for part in parts if (name := _spelled(part))]


# Edits by what an expression is.


_ASKED = ("size", "dim", "numel", "item", "stride", "parameters", "backward")  # what is asked of it


# What goes into these is the program's data: with less of it many an error goes away.
_GATHER = (
    "zip list tuple dict set enumerate iter next map filter sorted range parameters DataLoader"
    " TensorDataset".split()
)


def _operands(place: Place) -> Iterator[tuple[ast.expr, str]]:
    """Expressions of a statement that could be other tensors, each with its role."""
    seen: set[int] = set()
    for node in place.parts():
        pairs: list[tuple[ast.expr, str]] = []
        if _called(node) in _GATHER:
            continue
        if isinstance(node, ast.Call):
            pairs = [(a, "argument") for a in node.args]
            pairs += [(k.value, "argument") for k in node.keywords]
            if isinstance(node.func, ast.Attribute) and node.func.attr not in _ASKED:
                pairs.append((node.func.value, "receiver"))
        elif isinstance(node, ast.BinOp):
            pairs = [(node.left, "side"), (node.right, "side")]
        elif isinstance(node, ast.Subscript):
            pairs = [(node.value, "indexed"), (node.slice, "index")]
        elif isinstance(node, (ast.List, ast.Tuple)) and isinstance(node.ctx, ast.Load):
            pairs = [(e, "element") for e in node.elts]
        elif isinstance(node, (ast.Assign, ast.AugAssign, ast.Return)) and node.value is not None:
            pairs = [(node.value, "value")]
        for expression, role in pairs:
            if isinstance(expression, (ast.Starred, ast.Constant, ast.Slice, ast.Lambda)):
                continue
            if id(expression) not in seen:
                seen.add(id(expression))
                yield expression, role


def values(site: Site) -> Iterator[Candidate]:
    """Tensors and arrays in another form: of another shape, dtype, or copied."""
    for place in site.raising[:1]:  # a part is written
        target = getattr(place.statement, "targets", [None])[0]
        value = getattr(place.statement, "value", None)
        if isinstance(target, ast.Subscript) and isinstance(value, ast.Name):
            index = f"{place.text(target.slice)}, : len({place.text(value)})"
            yield place.replaced(0.6, (target, f"{place.text(target.value)}[{index}]"))
    for place in site.places:
        operands = list(_operands(place))
        tensors = {_spelled(e): v for e, _ in operands if isinstance(v := place.value(e), Tensor)}
        for expression, role in operands:
            value = place.value(expression)
            if value is MISSING and role == "value":
                value = place.result()
            for cost, new in _forms(place, expression, value, tensors, site):
                plain = isinstance(
                    expression, (ast.Name, ast.Attribute, ast.Call, ast.Subscript, ast.Tuple)
                )
                old = place.text(expression)
                text = new if plain or not new.startswith(old) else f"({old}){new[len(old) :]}"
                more = 0.0 if value is not MISSING else 0.3
                more += 0.2 if role == "value" else 0.0
                yield place.replaced(cost + more, (expression, text))
                alike = [
                    other
                    for other, _ in operands
                    if isinstance(value, Tensor)
                    and other is not expression
                    and getattr(place.value(other), "shape", None) == value.shape
                    and isinstance(other, ast.Name)
                    and isinstance(expression, ast.Name)
                ]
                if alike:  # what is wrong with one is with those of its shape
                    pairs = [(o, new.replace(old, place.text(o))) for o in (expression, *alike)]
                    yield place.replaced(cost + more + 0.1, *pairs)


def _forms(
    place: Place, node: ast.expr, value: Any, others: dict[str, Tensor], site: Site
) -> Iterator[tuple[float, str]]:
    """Texts in the place of an expression: (cost, text)."""
    old = place.text(node)
    if not old:
        return
    if isinstance(node, ast.Call) and _called(node) in ("half", "bfloat16", "double"):
        yield 0.7, place.text(node.func).rpartition(".")[0]
    if isinstance(value, dict):
        for key in (key for key in value if isinstance(key, str)):
            yield 0.8, f"{old}[{key!r}]"
    if isinstance(value, Iterator) and (bound := site.binding(place, node)) is not None:
        yield 0.4, bound.text(bound.statement.value)  # type: ignore[attr-defined]
    if isinstance(value, list) and len(value) in site.told and isinstance(node, ast.List):
        for more in (n - len(value) for n in site.told if n > len(value)):
            yield 1.4, f"{old[:-1]}{more * (', ' + place.text(node.elts[-1]))}]"
    for kind in re.findall(r"\bnot an? (\w+)", site.text):
        for name, other in place.names().items():
            if kind in (base.__name__ for base in type(other).__mro__) and name != old:
                yield 0.6, name
    if isinstance(value, np.ndarray):
        yield 0.8, f"{old}.copy()"
        yield 1.0, f'{old}.astype("float32")'
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        yield 1.2, f"torch.tensor({old})"
    if isinstance(value, list) and value and all(type(v) in (int, float, bool) for v in value):
        yield 0.7, f"torch.tensor({old})"
    if isinstance(value, (list, tuple)) and value:
        yield 0.9, f"*{old}"
        for name in dir(value):  # of a named tuple
            if isinstance(getattr(value, name), Tensor):
                yield 0.8 - 0.1 * (name in site.text), f"{old}.{name}"
        if all(isinstance(v, Tensor) for v in value):
            if isinstance(value, tuple):
                yield 1.2, f"{old}[0]"
            yield 1.2, f"torch.stack({old})"
    if isinstance(value, type) or (callable(value) and not isinstance(value, nn.Module)):
        yield 0.5, f"{old}()"
    if value is MISSING:
        yield 1.4, f"*{old}"
        if "tuple" in site.text:
            yield 1.6, f"{old}[0]"
    elif isinstance(value, nn.Module) and len({p.dtype for p in value.parameters()}) == 1:
        if any(p.dtype != torch.float32 for p in value.parameters()):
            yield 1.0, f"{old}.float()"
    if value is not MISSING and not isinstance(value, Tensor):
        return
    if isinstance(value, Tensor) and value.numel():
        yield from _moved(old, value, site)
    used = map(site.raising[0].value, site.raising[0].parts())
    real = not any(isinstance(each, nn.Parameter) for each in used)
    spectrum = real and re.search(r"Complex|complex\d", site.text)
    if spectrum and (value is MISSING or value.is_complex()):
        yield (0.2 if isinstance(node, ast.BinOp) else 0.5), f"{old}.abs()"
        return
    if "device" in site.text:
        for name, other in others.items():
            if value is not MISSING and name and other.device != value.device:
                yield 0.6 + 0.1 * isinstance(value, nn.Parameter), f"{old}.to({name}.device)"
    kinds = re.search(r"type|Long|Float|Half|Double|Int|Bool|float|integer|bool", site.text)
    yield from _cast(old, value, others, site, 0.7 if kinds else 2.0)
    graph = re.search(r"grad|backward|inplace|in-place|leaf", site.text)
    whole = isinstance(place.statement, ast.Assign) and node is place.statement.value
    if "differentiated" in site.text and whole:
        yield 0.5, f"{old}.requires_grad_()"
    if "non-leaf" in site.text and whole:
        yield 0.5, f"{old}.detach().requires_grad_()"
    elif "scalar outputs" in site.text:
        yield 0.5, f"{old}.mean()"
    elif graph and not re.search("does not require grad|second time|non-leaf", site.text):
        yield 0.8, f"{old}.detach()"
        yield 1.0, f"{old}.clone()"
    indexed = re.search("^(?!Dimension).*out of (range|bounds)", site.text)
    learned = isinstance(value, nn.Parameter)  # it was given the shape that it shall have
    yield from _shaped(old, value, others, site, 1.5 if graph or indexed or learned else 0.0)


def _moved(old: str, value: Tensor, site: Site) -> Iterator[tuple[float, str]]:
    """Numbers that count from one, or lie between others than those that are allowed."""
    if value.is_complex() or value.requires_grad:
        return
    with suppress(RuntimeError):  # it belongs to a transformation that has ended
        yield from _inside_bounds(old, value, site)
        if value.unique().tolist() == [0, 1] and value.dim() > 1:  # is one of them each time 1?
            for d in range(1, value.dim()):
                if bool((value.sum(d) == 1).all()):
                    yield 0.6, f"{old}.argmax({d})"
        if value.dtype == torch.int64 and value.dim() and "dtype" in site.text:
            for number in (n for n in site.sizes if n > max(1, int(value.max()))):
                yield 1.0, f"torch.nn.functional.one_hot({old}, {number}).float()"


def _inside_bounds(old: str, value: Tensor, site: Site) -> Iterator[tuple[float, str]]:
    low, high = float(value.detach().min()), float(value.detach().max())
    whole = not value.is_floating_point() and value.dtype != torch.bool
    if whole and low > 0 and int(high) in site.told and re.search(r"out of|outside", site.text):
        yield 0.4, f"({old} - {int(low)})"
    if whole and low < 0 and re.search(r"out of|outside", site.text):
        yield 1.0, f"{old}.clamp(min=0)"
    if "between 0 and 1" in site.text and value.unique().numel() == 2:
        shifted = f"{old} {'-' if low > 0 else '+'} {abs(low):g}"
        yield 0.4, f"({shifted})" if high - low == 1 else f"(({shifted}) / {high - low:g})"


def _cast(
    old: str, value: Any, others: dict[str, Tensor], site: Site, cost: float
) -> Iterator[tuple[float, str]]:
    dtype = value.dtype if value is not MISSING else None
    floats = dtype is not None and dtype.is_floating_point
    for name, words in (("half", "half"), ("bfloat16", "bfloat16"), ("cfloat", "ComplexFloat")):
        if re.search(rf"\b(c10::)?{words}\b", site.text, re.I):
            yield cost + 0.3, f"{old}.{name}()"
    if dtype != torch.float32:
        yield cost, f"{old}.float()"
    graph = (value is not MISSING and value.requires_grad) or "grad" in site.text
    if graph and not re.search("Long|long|int", site.text):
        return
    if dtype != torch.int64:
        loses = floats and bool((value != value.round()).any())
        yield cost + 0.2 * floats + 0.8 * loses, f"{old}.long()"
    if dtype != torch.bool:
        flags = (
            "bool" in site.text.lower()
            and dtype is not None
            and set(value.unique().tolist()) == {0, 1}
        )
        yield cost + (-0.2 if flags else 0.6), f"{old}.bool()"
    for name, other in others.items():
        if name and name != old and other.dtype != dtype and other.dtype != torch.float32:
            yield cost + 0.4, f"{old}.to({name}.dtype)"


# Other shapes of a tensor: cost, fewest and most dimensions that it has, and how they are written.
_SHAPES = (
    (1.1, 2, 2, "{}.flatten()"),
    (1.1, 3, 9, "{}.flatten(1)"),
    (1.2, 2, 9, "{}.flatten(0, 1)"),
    (1.15, 2, 9, "{}.transpose(-2, -1)"),
    (1.2, 3, 9, "{}.transpose(0, 1)"),
    (1.2, 3, 9, "{}.transpose(1, 2)"),
    (1.3, 3, 3, "{}.permute(2, 0, 1)"),
    (1.5, 3, 9, "{}[:, -1]"),
    (1.6, 3, 9, "{}.mean(1)"),
)


def _shaped(
    old: str, value: Any, others: dict[str, Tensor], site: Site, more: float
) -> Iterator[tuple[float, str]]:
    shape = tuple(value.shape) if value is not MISSING else None
    rank = len(shape) if shape is not None else 2
    for d in range(rank):
        if shape is None or shape[d] == 1:
            yield more + 0.8, f"{old}.squeeze({d})"
    for d in (*range(rank), -1):
        unlike = 0.05 * (d not in (0, 1))
        if shape is not None:
            new = list(value.unsqueeze(d).shape)
            unlike += 0.1 * min(
                [
                    sum(a not in (1, b) for a, b in zip(new, other.shape, strict=True))
                    + (0 if any(a == b > 1 for a, b in zip(new, other.shape, strict=True)) else 1)
                    for other in others.values()
                    if other.dim() == rank + 1
                ],
                default=0,
            )
        yield more + 1.0 + unlike, f"{old}.unsqueeze({d})"
    for cost, fewest, most, text in _SHAPES:
        if fewest <= rank <= most or (shape is None and most > rank):
            yield more + cost, text.format(old)
    last = [d for name, v in others.items() if name != old for d in v.shape[-1:] if v.dim() > 1]
    product = re.search("mat1|matmul|mat2|bmm", site.text) and old != next(iter(others), "")
    if product and shape and shape[-1] in last:  # the second of two is the one to turn
        yield more + 0.65, f"{old}.transpose(-2, -1)"
    if rank > 2:
        turned = (0, rank - 1, *range(1, rank - 1)), (0, *range(2, rank), 1)
        channels = shape is not None and "channels" in site.text and shape[-1] in site.told
        for cost, order in zip((0.6 if channels else 1.2, 1.25), turned, strict=True):
            yield more + cost, f"{old}.permute({', '.join(map(str, order))})"
    for name, other in others.items():
        if not name or name == old:
            continue
        if shape is not None and other.dim() > rank:
            nones = ", None" * (other.dim() - rank)
            yield more + 1.05, f"{old}[:{nones}]" if rank == 1 else f"{old}[..., None]"
            yield more + 1.3, f"{old}.unsqueeze(-1).expand_as({name})"
        if shape is not None and other.dim() < rank and "shape" in site.text:
            yield more + 1.2, f"{old}.mean(0)"
        if other.shape != shape and other.dim() == rank:
            yield more + 1.5, f"{old}.expand_as({name})"
            yield more + 1.6, f"{old}.reshape({name}.shape)"
            if rank > 3:
                yield more + 1.3, f"torch.nn.functional.interpolate({old}, size={name}.shape[2:])"
            if rank > 1:
                yield more + 1.7, f"{old}[..., : {name}.shape[-1]]"
                yield more + 1.7, f"{old}[:, : {name}.shape[1]]"
    for size in dict.fromkeys(n for n in site.told if n > 1):
        yield more + 2.0, f"{old}[..., :{size}]"
        yield more + 2.1, f"{old}[:{size}]"


# Edits of calls.


def calls(site: Site) -> Iterator[Candidate]:
    """Options switched, keywords left out, arguments added, functions of the same family."""
    for place in site.places:
        for call in place.calls():
            function = place.value(call.func)
            yield from _options(site, place, call, function)
            yield from _siblings(place, call, function)
            yield from _arguments(site, place, call, function)


def _signature(function: Any) -> dict[str, Any]:
    """The parameters of a function with their defaults; from its documentation if built in."""
    with suppress(Exception):
        target = function.forward if isinstance(function, nn.Module) else function
        return {n: p.default for n, p in inspect.signature(target).parameters.items()}
    first = (getattr(function, "__doc__", "") or "").strip().partition("->")[0]
    flags = re.findall(r"(\w+)=(True|False)", first)
    return {name: word == "True" for name, word in flags}


# Switches that silence an error and leave its cause, or are out of use.
_NO_CURES = (
    "bias enabled requires_grad create_graph materialize_grads strict size_average reduce affine"
    " track_running_stats training is_grads_batched full_graph drop_last differentiable capturable"
    " maximize foreach fused"
).split()


def _options(site: Site, place: Place, call: ast.Call, function: Any) -> Iterator[Candidate]:
    if function is MISSING:
        return
    own = {k.arg: k for k in call.keywords}
    for at, (name, default) in enumerate(_signature(function).items()):
        if name not in own and at >= len(call.args):
            for value in _given(site, place, name, default is None and isinstance(function, type)):
                yield place.replaced(0.8, (call, _with(place, call, f"{name}={value}")))
        given = own.get(name)
        lacks = name == "create_graph" and "does not require grad" in site.text
        switch = given is not None and isinstance(getattr(given.value, "value", None), bool)
        if (isinstance(default, bool) or switch) and (lacks or name not in _NO_CURES):
            named = 0.6 if name in site.text else 0.0
            if given is None:
                yield place.replaced(
                    0.9 - named, (call, _with(place, call, f"{name}={not default}"))
                )
            elif isinstance(given.value, ast.Constant):
                yield place.replaced(1.5 - named, (given.value, repr(not given.value.value)))
        elif isinstance(default, str) and re.search(rf"\b{name}\b", site.text) and name not in own:
            for word in reversed(re.findall(r"'(\w+)'", site.text)):
                yield place.replaced(0.5, (call, _with(place, call, f"{name}={word!r}")))
        elif default == 0 and name.endswith("padding") and name not in own:
            if re.search("size|shape|dimension", site.text):
                cost = 0.9 - 0.1 * (name != "padding") + 0.7 * bool(site.running)
                yield place.replaced(cost, (call, _with(place, call, f"{name}=1")))
        elif isinstance(default, int) and name not in own:
            for number in dict.fromkeys(site.told):
                if number != default and number < 0 and "index" in name:
                    yield place.replaced(1.1, (call, _with(place, call, f"{name}={number}")))
    if isinstance(function, type) and "self" not in place.names():
        made, known = place.result(), _signature(function)
        more_names = dir(made) if isinstance(made, function) else ()
        for name in dict.fromkeys([*known, *(n for n in more_names if n[0] != "_")]):
            size = known[name] if name in known else getattr(made, name, None)
            size = getattr(made, name, size) if size is inspect.Parameter.empty else size
            if name in own or type(size) is not int or size < 2:
                continue
            for at, number in enumerate(n for n in site.sizes[:8] if n > size):
                if size in site.told or name not in known:
                    more = _with(place, call, f"{name}={number}")
                    yield place.replaced(0.9 + 0.02 * at, (call, more))
    for keyword in call.keywords:
        if keyword.arg is not None and keyword.arg in site.text:
            parts = set(keyword.arg.split("_"))
            for other, default in _signature(function).items():
                if default is None and parts & set(other.split("_")) and other not in own:
                    text = f"{other}={place.text(keyword.value)}"
                    yield place.replaced(0.8, (keyword, text))
            rest = [place.text(a) for a in call.args]
            rest += [place.text(k) for k in call.keywords if k is not keyword]
            text = f"{place.text(call.func)}({', '.join(rest)})"
            cost = 1.3 if not place.distance else 2.0
            purpose = isinstance(place.value(keyword.value), (Tensor, list, dict))
            cost += 1.5 * purpose
            yield place.replaced(cost, (call, text))
            for near in difflib.get_close_matches(keyword.arg, list(_signature(function)), 2, 0.5):
                if near != keyword.arg and "keyword" in site.text:
                    yield place.replaced(0.4, (keyword, f"{near}={place.text(keyword.value)}"))


def _given(site: Site, place: Place, name: str, builds: bool) -> list[str]:
    """What may be given for an argument: what the function around has by its name; where the
    message asks for it, how often the program's loops run."""
    arguments = place.function.args.args if place.function is not None else []
    asked = builds and re.search(rf"\b{name}\b", site.text)
    return [name] * (name in {a.arg for a in arguments[1:]}) + (site.rounds if asked else [])


def _with(place: Place, call: ast.Call, more: str) -> str:
    """A call with one more argument."""
    text = place.text(call)
    given = call.args or call.keywords
    head = text[:-1].rstrip().rstrip(",")
    return f"{head}, {more})" if given else f"{head}{more})"


# Functions that are taken for each other.
_FAMILIES = (
    ("stack", "tensor", "cat"),
    ("view", "reshape"),
    ("matmul", "mm"),
    ("matmul", "bmm"),
    ("matmul", "mul"),
    ("mm", "mul"),
    ("kaiming_normal_", "zeros_"),
    ("kaiming_uniform_", "zeros_"),
    ("xavier_uniform_", "zeros_"),
    ("xavier_normal_", "zeros_"),
    ("orthogonal_", "zeros_"),
    ("binary_cross_entropy", "binary_cross_entropy_with_logits"),
    ("BCELoss", "BCEWithLogitsLoss"),
    ("Conv1d", "Conv2d", "Conv3d"),
    ("BatchNorm1d", "BatchNorm2d", "BatchNorm3d"),
    ("MaxPool1d", "MaxPool2d", "MaxPool3d"),
    ("AvgPool1d", "AvgPool2d", "AvgPool3d"),
    ("sample", "rsample"),
    ("from_numpy", "tensor"),
    ("append", "extend"),
)


def _siblings(place: Place, call: ast.Call, function: Any) -> Iterator[Candidate]:
    name = _called(call)
    head = place.text(call.func)[: -len(name)]
    parts = place.value(call.args[0]) if name in ("stack", "tensor") and call.args else None
    if isinstance(parts, (list, tuple)) and len({getattr(each, "shape", 0) for each in parts}) > 1:
        text = _padded(list(parts), place.text(call.args[0]))
        yield place.replaced(0.6, (call, text))
    made = place.value(call.func.func) if isinstance(call.func, ast.Call) else function
    if isinstance(made, type) and issubclass(made, torch.autograd.Function):
        kind = call.func.func if isinstance(call.func, ast.Call) else call.func
        yield place.replaced(0.4, (call.func, f"{place.text(kind)}.apply"))
    for family in _FAMILIES:
        for other in family if name in family else ():
            if other != name:
                yield place.replaced(1.0, (call.func, f"{head}{other}"))
    if function is not MISSING and not callable(function):  # an attribute, not a method
        given = ", ".join(map(place.text, call.args))
        text = place.text(call.func)
        yield place.replaced(0.6, (call, f"{text}[{given}]" if given else text))
    if name in ("numpy", "item", "tolist"):
        yield place.replaced(0.8, (call.func, f"{head}detach().{name}"))
    if name == "item":
        count = isinstance(getattr(call.func, "value", None), ast.Compare)
        yield place.replaced(0.9, (call.func, f"{head}{'sum' if count else 'mean'}().{name}"))
    if name == "permute" and len(call.args) > 2:
        rank = 4 if len(call.args) == 3 else 3
        turned = (0, rank - 1, *range(1, rank - 1)) if rank == 4 else (0, 2, 1)
        yield place.replaced(0.9, (call, f"{place.text(call.func)}{turned}"))


def _arguments(site: Site, place: Place, call: ast.Call, function: Any) -> Iterator[Candidate]:
    if len(call.args) == 2 and not call.keywords and not place.distance:
        a, b = call.args
        yield place.replaced(1.5, (a, place.text(b)), (b, place.text(a)))
    lacking = re.search(r"missing \d+ required .*?argument.*?: '(\w+)'", site.text)
    if lacking is None or place.distance:
        return
    order = {name: at for at, name in enumerate(place.frame.f_locals)}
    for name, value in place.frame.f_locals.items():
        if name.startswith("_") or inspect.ismodule(value) or isinstance(value, type):
            continue
        like = difflib.SequenceMatcher(None, name, lacking[1]).ratio()
        number = isinstance(value, Tensor) and value.numel() == 1
        late = order[name] / len(order)
        cost = (
            1.6
            - 0.5 * like
            - 0.3 * late
            - (0.4 if number else 0)
            + (0 if isinstance(value, (Tensor, int, float)) else 0.5)
        )
        yield place.replaced(cost, (call, _with(place, call, name)))


# Edits of names, numbers and statements.


def spellings(site: Site) -> Iterator[Candidate]:
    """Names and attributes that nearly are others."""
    error = site.error
    for place in site.raising[:1]:
        for node in place.parts():
            if isinstance(error, AttributeError) and isinstance(node, ast.Attribute):
                if node.attr != error.name or place.value(node) is not MISSING:
                    continue
                for cost, near in _attributes(site, place, node):
                    yield place.replaced(cost, (node, f"{place.text(node.value)}.{near}"))
            elif isinstance(error, NameError) and isinstance(node, ast.Name):
                if node.id == error.name:
                    yield from _known_names(place, node)
            elif isinstance(error, KeyError) and isinstance(node, ast.Dict):
                for key in (k for k in node.keys if isinstance(k, ast.Constant)):
                    if difflib.get_close_matches(str(key.value), map(str, error.args), 1, 0.6):
                        yield place.replaced(0.4, (key, repr(error.args[0])))
            elif isinstance(error, KeyError) and isinstance(node, ast.Subscript):
                owner = place.value(node.value)
                if isinstance(owner, dict) and isinstance(node.slice, ast.Constant):
                    keys = [k for k in owner if isinstance(k, str)]
                    for near in difflib.get_close_matches(str(node.slice.value), keys, 3, 0.5):
                        yield place.replaced(0.4, (node.slice, repr(near)))


def _attributes(site: Site, place: Place, node: ast.Attribute) -> Iterator[tuple[float, str]]:
    """Attributes that nearly have a name; those of a module that may be used in its place."""
    owner: Any = site.error.obj  # type: ignore[attr-defined]
    names = [n for n in dir(owner) if not n.startswith("__")]
    for at, near in enumerate(difflib.get_close_matches(node.attr, names, 4, 0.6)):
        yield 0.3 + 0.05 * at, near
    asked = [n.attr for n in place.parts() if isinstance(n, ast.Attribute) and n.value is node]
    called = any(isinstance(n, ast.Call) and n.func is node for n in place.parts())
    parts = vars(owner) if isinstance(owner, nn.Module) else {}
    text = "\n".join(each.text for each in site.program.sources)
    for kind in ("_modules", "_parameters", "_buffers"):
        for at, (name, part) in enumerate(reversed(parts.get(kind, {}).items())):
            if all(hasattr(part, each) for each in asked) and (callable(part) or not called):
                used = len(re.findall(rf"\.{name}\b", text)) > 1
                yield 0.6 + 0.2 * used + 0.02 * at, name


def misnamed(site: Site) -> Iterator[Candidate]:
    """Methods whose name nearly is one that their class should have."""
    for source in site.program.texts:
        for node in ast.walk(source.tree):
            kind = site.program.names.get(getattr(node, "name", ""))
            if not isinstance(node, ast.ClassDef) or not isinstance(kind, type):
                continue
            own = [each for each in node.body if isinstance(each, ast.FunctionDef)]
            asked = {*dir(kind.__base__), "__getitem__", "__len__", "__iter__", "__call__"}
            asked -= {each.name for each in own}
            for each in own:
                for near in difflib.get_close_matches(each.name, list(asked), 1, 0.75):
                    if each.name not in dir(kind.__base__):
                        old = source.lines[each.lineno - 1]
                        new = old.replace(each.name, near, 1)
                        yield Candidate(0.35, (_lines(source, each.lineno, each.lineno, new),))


def _known_names(place: Place, node: ast.Name) -> Iterator[Candidate]:
    names = {**place.frame.f_globals, **place.frame.f_locals}
    for near in difflib.get_close_matches(node.id, list(names), 3, 0.6):
        yield place.replaced(0.4, (node, near))
    for owner in ("self", "torch", "nn", "F", "np", "math"):
        if owner in names and hasattr(names[owner], node.id):
            yield place.replaced(0.5, (node, f"{owner}.{node.id}"))


def numbers(site: Site) -> Iterator[Candidate]:
    """Sizes that are written in the program, as what the operands need."""
    near = {id(place.statement): place.distance for place in site.places}
    top = site.raising[0].frame
    for source in site.program.texts:
        made = {id(n) for call in ast.walk(source.tree) if _is_data(call) for n in ast.walk(call)}
        drawn = {id(n) for call in ast.walk(source.tree) if _is_drawn(call) for n in ast.walk(call)}
        loaders = (call for call in ast.walk(source.tree) if _called(call) == "DataLoader")
        loads = {id(n) for call in loaders for n in ast.walk(call)}
        written: dict[int, list[ast.expr]] = {}
        for node in (each for each in _literals(source.tree) if id(each) not in loads):
            written.setdefault(_number(node), []).append(node)
        for value, nodes in written.items():
            told = value in site.told or value in site.sizes
            for node in nodes:
                statement = _innermost(source.tree, node.lineno)
                distance = near.get(id(statement))
                if statement is None or (distance is None and not (told and value > 1)):
                    continue
                place = Place(source, statement, top, min(distance or 0.0, 0.6))
                more = (0.0 if distance is not None else 0.2) + 0.7 * (id(node) in made)
                more += 1.8 * (id(node) in drawn)
                for cost, size in _instead(value, site):
                    shared = 0.8 * (size in site.batch and id(node) not in made)
                    yield place.replaced(cost + more + shared, (node, str(size)))
            if told and 1 < len(nodes) < 5 and value > 1:
                for cost, size in _instead(value, site):
                    edits = _spliced(source, [(node, str(size)) for node in nodes])
                    more = 0.5 + 0.7 * any(id(node) in made for node in nodes)
                    more += 1.8 * any(id(node) in drawn for node in nodes)
                    yield Candidate(cost + more, edits)
    for place in site.places:
        for part in place.parts():
            yield from _dimensions(place, part)
    for place in (*site.builders, *site.bindings, *site.mentioned):
        for call in place.calls():
            for argument in (*call.args, *(keyword.value for keyword in call.keywords)):
                value = place.value(argument)
                if not isinstance(argument, (ast.Constant, ast.Starred)):
                    if value is MISSING or type(value) is int:
                        for cost, new in _reckoned(place, argument, value, site):
                            yield place.replaced(cost, (argument, new))
    for place in site.raising:
        yield from _taken(place, site)
        for call in place.calls():
            yield from _rest(place, call, site)


def _rest(place: Place, call: ast.Call, site: Site) -> Iterator[Candidate]:
    """The last of the sizes of all parts as what the others leave of the whole."""
    for whole in call.args[:1]:
        for parts in call.args[1:]:
            sizes = place.value(parts)
            with suppress(Exception):
                if isinstance(parts, ast.List) and sum(sizes) != len(place.value(whole)):
                    *others, last = parts.elts
                    left = " - ".join((f"len({place.text(whole)})", *map(place.text, others)))
                    yield place.replaced(0.4, (last, left))
                    if (bound := site.binding(place, last)) is not None:
                        value = bound.statement.value  # type: ignore[attr-defined]
                        yield bound.replaced(0.0, (value, left))


def _reckoned(place: Place, node: ast.expr, value: Any, site: Site) -> Iterator[tuple[float, str]]:
    """A size that is computed, computed in another way."""
    text = place.text(node)
    loose = f"({text})" if isinstance(node, ast.BinOp) else text
    told = list(dict.fromkeys(n for n in site.told if n > 1))[:6]
    for a in told if value is MISSING else [value]:
        for at, b in enumerate(told if value is MISSING else site.sizes[:12]):
            cost = 1.0 + 0.3 * (value is MISSING) + 0.02 * at
            if b > a and b % a == 0:
                yield cost, f"{loose} * {b // a}"
            elif b < a and a % b == 0:
                yield cost, f"{loose} // {a // b}"
            elif b != a:
                yield cost + 0.1, f"{text} {'+' if b > a else '-'} {abs(b - a)}"
    yield 1.3, f"{text} + 1"
    for name in _unread(_function(place.source.tree, node)):
        yield 0.75, f"{text} + {name}"
        yield 0.8, f"{loose} * {name}"
        yield 0.85, name
    if value in site.told:
        for loop in ast.walk(site.raising[0].source.tree):
            if isinstance(loop, ast.For) and hasattr(site.raising[-1].value(loop.iter), "__len__"):
                if loop.lineno < site.raising[0].statement.lineno <= (loop.end_lineno or 0):
                    yield 0.7, f"{loose} * len({ast.unparse(loop.iter)})"


def _unread(function: ast.AST | None) -> list[str]:
    """Arguments that a function takes and never reads."""
    if not isinstance(function, Function):
        return []
    read = {n.id for n in ast.walk(function) if isinstance(n, ast.Name)}
    return [a.arg for a in function.args.args if a.arg not in read | {"self", "cls"}]


def _taken(place: Place, site: Site) -> Iterator[Candidate]:
    """A size that is written in a function, taken from what the function was given."""
    function = place.function
    if not isinstance(function, Function):
        return
    names = [each.arg for each in function.args.args]
    given = {n: v for n in names if isinstance(v := place.frame.f_locals.get(n), Tensor)}
    nodes: dict[int, list[ast.AST]] = {}
    for node in ast.walk(function):
        if isinstance(node, (ast.Constant, ast.Name)) and type(v := place.value(node)) is int:
            if v in site.told and v > 1 and not isinstance(getattr(node, "ctx", None), ast.Store):
                nodes.setdefault(v, []).append(node)
    for old, same in nodes.items():
        for name, tensor in given.items():
            for d, size in enumerate(tensor.shape):
                if size != old and size in site.told:
                    own = ((node, f"{name}.size({d})") for node in same)
                    yield place.replaced(0.6, *own)


def _dimensions(place: Place, node: ast.AST) -> Iterator[Candidate]:
    """Another dimension: of ``x.size(1)``, ``x.shape[1]``, ``dim=1``."""
    number: ast.expr | None = None
    if isinstance(node, ast.Call) and getattr(node.func, "attr", "") == "size" and node.args:
        number = node.args[0]
    elif isinstance(node, ast.Subscript) and getattr(node.value, "attr", "") == "shape":
        number = node.slice
    elif isinstance(node, ast.keyword) and node.arg in ("dim", "axis"):
        number = node.value
    elif isinstance(node, ast.Call) and len(node.args) == 1:
        method = getattr(Tensor, _called(node), None) if isinstance(node.func, ast.Attribute) else 0
        if re.match(r"\s*\w+\(dim\b", getattr(method, "__doc__", "") or ""):
            number = node.args[0]
    old: Any = _number(number) if number is not None else MISSING
    for other in (0, 1, -1, 2) if type(old) is int else ():
        if other != old and number is not None:
            far = abs(other - old) if other >= 0 else 1.5
            yield place.replaced(0.95 + 0.02 * far, (number, str(other)))


def _is_data(node: ast.AST) -> bool:
    """Whether an expression makes data: its sizes are what they are."""
    name = _called(node)
    return name == "tensor" or name in having("makes")


def _is_drawn(node: ast.AST) -> bool:
    """Whether an expression stands for what a program would read."""
    name = _called(node)
    return name == "tensor" or ("rand" in name and name in having("makes"))


def _instead(value: int, site: Site) -> Iterator[tuple[float, int]]:
    """Sizes in the place of one: (cost, size); what the message says of both is the likeliest."""
    common = [math.gcd(value, n) for n in site.sizes]
    lacking = [n - value for n in site.sizes]
    fitting = [max(d for d in range(1, value + 1) if n % d == 0) for n in site.sizes]
    parts = fitting if "divi" in site.text else []
    for at, size in enumerate(dict.fromkeys([*parts, *site.sizes, *common, *lacking])):
        if 0 < size <= 64 * value and size != value and at < 20:
            cost = 0.8 if value in site.told else 1.3
            cost += 0.0 if size in site.told else 0.5
            yield cost + 0.02 * at + (0.8 if size < 3 else 0.0), size


def _literals(tree: ast.AST) -> Iterator[ast.expr]:
    """Whole numbers and products of them, as they are written."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, (ast.Constant, ast.BinOp)):
            with suppress(Exception):
                if type(_number(node)) is int and _number(node) > 0:
                    yield node
                    continue
        yield from _literals(node)


def structures(site: Site) -> Iterator[Candidate]:
    """Results of several parts taken apart, layers registered, statements added or left out."""
    for place in site.places:
        for node in place.parts() if "operand type" in site.text else ():
            if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
                both = f"[*{place.text(node.left)}, *{place.text(node.right)}]"
                yield place.replaced(0.5, (node, both))
        yield from _unpacked(place)
        yield from _registered(place, site)
    yield from _loaded(site)
    if re.search("data-dependent|Boolean value of Tensor|traced", site.text):
        yield from _chosen(site)
    for place in site.raising:
        if place.distance == 0 and "has already been" in site.text:
            yield place.written(0.6, "")
        if place.distance == 0 and "already exists" in site.text:
            for source in site.program.sources:
                for node in ast.walk(source.tree):
                    if isinstance(node, ast.Assign) and any(
                        f"'{name.removeprefix('self.')}'" in site.text for name in _bound(node)
                    ):
                        other = Place(source, node, place.frame, 0.0)
                        yield other.replaced(1.0, (node, "pass"))
    for source in site.program.texts:
        for node in ast.walk(source.tree):
            if isinstance(node, ast.FunctionDef) and node.name == "backward":
                for each in ast.walk(node):
                    if isinstance(each, ast.Return) and each.value and "gradients" in site.text:
                        own = Place(source, each, site.raising[0].frame, 0.0)
                        lacking = abs(site.told[0] - site.told[1]) if len(site.told) == 2 else 1
                        text = own.text(each.value) + lacking * ", None"
                        yield own.replaced(0.5, (each.value, text))
            if isinstance(node, ast.ClassDef) and any(
                "Module" in ast.unparse(b) for b in node.bases
            ):
                yield from _initialised(source, node, site)


def _loaded(site: Site) -> Iterator[Candidate]:
    """Batches made in another way, and modules that are not trained."""
    rows = [f.f_locals.get("batch") for f in site.inner if f.f_code.co_name == "default_collate"]
    for place in site.places:
        for call in place.calls():
            name = place.text(call.func)
            if _called(call) == "DataLoader" and "when training" in site.text:
                yield place.replaced(0.9, (call, _with(place, call, "drop_last=True")))
            elif _called(call) == "DataLoader" and rows and isinstance(rows[0], list):
                more = f"collate_fn=lambda rows: {_padded(rows[0], 'rows')}"
                yield place.replaced(0.9, (call, _with(place, call, more)))
            elif (
                isinstance(place.value(call.func), nn.Module)
                and "when training" in site.text
                and not name.startswith("self.")  # it would stay so, in training too
            ):
                top = site.raising[-1]
                learns = "backward(" in "\n".join(top.source.lines[top.statement.lineno - 1 :])
                above = [s for s in ast.walk(place.source.tree) if isinstance(s, ast.With)]
                off = any(
                    s.lineno < call.lineno <= (s.end_lineno or 0) and _OFF.search(ast.unparse(s))
                    for s in above
                )
                cost = (0.4 if off else 1.0 + learns) + (place.frame is not site.frames[-1][0])
                yield place.replaced(cost, (call.func, f"{name}.eval()"))


def _padded(rows: list[Any], name: str) -> str:
    """An expression of a batch of ``rows``, those of unequal size padded."""
    first = rows[0]
    if isinstance(first, tuple):
        parts = (
            _padded([r[i] for r in rows], f"[r[{i}] for r in {name}]") for i in range(len(first))
        )
        return f"({', '.join(parts)})"
    if isinstance(first, Tensor) and len({r.shape for r in rows}) > 1:
        return f"torch.nn.utils.rnn.pad_sequence({name}, batch_first=True)"
    return f"torch.utils.data.default_collate({name})"


def _chosen(site: Site) -> Iterator[Candidate]:
    """A branch on a tensor as a choice between its elements."""
    place = site.raising[0]
    branch = place.statement
    for rows in map(_rows, ast.walk(place.source.tree)):
        if isinstance(branch, ast.If) and branch in rows:
            after = rows[rows.index(branch) + 1 :]
            one, *more = branch.body
            other = (branch.orelse or after or branch.body)[0]
            values = [v for each in (one, other) if (v := getattr(each, "value", None)) is not None]
            alike = type(one) is type(other) and _bound(one) == _bound(other)
            if alike and len(values) == 2 and not more:
                head = place.text(one).removesuffix(place.text(values[0]))
                texts = ", ".join(map(place.text, (branch.test, *values)))
                text = f"{branch.col_offset * ' '}{head}torch.where({texts})"
                last = other.end_lineno or other.lineno
                yield Candidate(0.4, (_lines(place.source, branch.lineno, last, text),))
    for node in place.parts():
        if isinstance(node, ast.IfExp):
            texts = ", ".join(map(place.text, (node.test, node.body, node.orelse)))
            yield place.replaced(0.4, (node, f"torch.where({texts})"))


def _unpacked(place: Place) -> Iterator[Candidate]:
    statement = place.statement
    if isinstance(statement, ast.Return) and isinstance(statement.value, ast.Tuple):
        for at, part in enumerate(statement.value.elts):
            yield place.replaced(0.9 + 0.1 * at, (statement.value, place.text(part)))
    target: ast.expr | None = None
    if isinstance(statement, ast.Assign) and len(statement.targets) == 1:
        target = statement.targets[0]
    elif isinstance(statement, ast.For):
        target = statement.target
    if isinstance(target, ast.Tuple) and len(target.elts) > 2:  # a part has parts of its own
        first, *rest = map(place.text, target.elts)
        yield place.replaced(0.5, (target, f"{first}, ({', '.join(rest)})"))
    if target is None or not _spelled(target) or _spelled(target).startswith("self."):
        return
    value = place.value(ast.copy_location(ast.Name(_spelled(target), ast.Load()), target))
    listed = isinstance(value, list) and isinstance(statement, ast.For)
    if (listed or isinstance(value, tuple)) and 2 <= len(value) <= 4:
        if any(isinstance(each, Tensor) for each in value):
            yield place.replaced(0.3, (target, _spelled(target) + ", _" * (len(value) - 1)))


def _registered(place: Place, site: Site) -> Iterator[Candidate]:
    statement = place.statement
    if not isinstance(statement, ast.Assign):
        return
    target = statement.targets[0]
    made = place.value(target)
    if "device" in site.text and isinstance(target, ast.Attribute) and isinstance(made, Tensor):
        if not isinstance(made, nn.Parameter) and _spelled(target):
            value = place.text(statement.value)
            text = f'self.register_buffer("{target.attr}", {value})'
            yield place.replaced(0.0, (statement, text))
    listed = isinstance(statement.value, (ast.List, ast.ListComp))
    if listed or isinstance(statement.value, (ast.Dict, ast.DictComp)):
        for kind in ("Module", "Parameter"):
            text = f"torch.nn.{kind}{'List' if listed else 'Dict'}({place.text(statement.value)})"
            yield place.replaced(0.9, (statement.value, text))


def _initialised(source: Source, node: ast.ClassDef, site: Site) -> Iterator[Candidate]:
    for method in node.body:
        if isinstance(method, ast.FunctionDef) and method.name == "__init__":
            written = "\n".join(map(ast.unparse, method.body))
            if "super()" not in written and "__init__(self" not in written:
                first = method.body[0]
                old = source.lines[first.lineno - 1]
                indent = old[: len(old) - len(old.lstrip())]
                edit = _lines(
                    source, first.lineno, first.lineno, f"{indent}super().__init__()\n{old}"
                )
                yield Candidate(0.3, (edit,))
            for statement in method.body:
                if isinstance(statement, ast.Assign) and "param" in site.text:
                    own = Place(source, statement, site.raising[0].frame, 0.2)
                    yield from _registered(own, site)


def graphs(site: Site) -> Iterator[Candidate]:
    """Values cut from a graph or left in it, graphs kept, writes without gradient."""
    if "NoneType" in site.text and ".grad" in site.raising[0].text(site.raising[0].statement):
        for place in site.bindings:
            yield from _in_place(place)
    if not re.search(r"grad|backward|in-?place|leaf|graph|inf checks|empty param", site.text):
        return
    if re.search(r"does not require grad|inf checks|empty parameter list", site.text):
        for place in (*site.fault, *site.bindings):
            yield from _uncut(place)
        yield from _switched(site)
        yield from _ordered(site)
    for place in (*site.fault, *site.bindings) if re.search("in-?place", site.text) else ():
        yield from _out_of_place(place)
    for place in site.raising[:1]:
        block = place.function or place.source.tree
        loops = [
            n
            for n in ast.walk(block)
            if isinstance(n, (ast.For, ast.While))
            and n.lineno <= place.statement.lineno <= (n.end_lineno or 0)
        ]
        around = min(loops, key=lambda n: (n.end_lineno or 0) - n.lineno) if loops else block
        carried = _carried(around) if loops else set()
        for statement in ast.walk(around):
            if not isinstance(statement, (ast.Assign, ast.Expr, ast.AugAssign)):
                continue
            own = Place(place.source, statement, place.frame, 0.0)
            for call in own.calls():
                if getattr(call.func, "attr", "") == "backward":
                    cost = 0.75 if statement is not place.statement else 1.3
                    yield own.replaced(cost, (call, _with(own, call, "retain_graph=True")))
            for argument in own.parts():
                name = _spelled(argument)
                given = isinstance(argument, ast.Name) and isinstance(argument.ctx, ast.Load)
                if given and name and isinstance(value := own.value(argument), Tensor):
                    cost = 0.7 if name in carried else 1.0
                    later = 0.3 * (statement.lineno >= place.statement.lineno - 1)
                    later += 0.5 * (not value.requires_grad)
                    text = (
                        ast.unparse(statement)
                        + ast.unparse(around).partition(ast.unparse(statement))[2]
                    )
                    if re.search(rf"(\w+)\({name}\)(?s:.*)\.backward\((?s:.*)\b\1\({name}\)", text):
                        later = -0.35  # a network judges it, and later again
                    yield own.replaced(cost + later, (argument, f"{name}.detach()"))
        if "second time" in site.text and loops:
            yield from _moved_into(place, around, carried)
        if place.statement.lineno == place.statement.end_lineno:
            yield place.written(1.2, f"with torch.no_grad():\n    {place.text(place.statement)}")


_OFF = re.compile(r"(torch\.)?(no_grad|inference_mode|set_grad_enabled)\([^)]*\)")
_LEAVES = "detach item tolist numpy float long int bool round sign cpu".split()
_ANEW = "tensor as_tensor from_numpy array asarray".split()


def _inside(node: ast.AST) -> ast.expr | None:
    """What an expression was computed from that has no gradient of its own."""
    if isinstance(node, ast.Call) and _called(node) in _LEAVES and not node.args:
        return getattr(node.func, "value", None)
    if isinstance(node, ast.Call) and _called(node) in _ANEW and node.args:
        return node.args[0]
    if isinstance(node, ast.Attribute) and node.attr == "data":
        return node.value
    return node.left if isinstance(node, ast.Compare) else None


def _uncut(place: Place) -> Iterator[Candidate]:
    """An expression without what cuts it from its graph."""
    for node in place.parts():
        inner, count = node, 0
        while (deeper := _inside(inner)) is not None:
            inner, count = deeper, count + 1
            yield place.replaced(0.5 - 0.05 * count, (node, place.text(inner)))
        if count:
            yield place.replaced(0.6, (node, f"torch.stack(list({place.text(inner)}))"))
        name = _called(node)
        if name == "sample":
            head = place.text(node.func)[: -len(name)]  # type: ignore[attr-defined]
            yield place.replaced(0.5, (node, f"{head}rsample()"))
        elif (
            name == "argmax" and isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)
        ):
            of, d = place.text(node.func.value), place.text(node.args[0]) if node.args else "-1"
            yield place.replaced(
                0.9, (node, f"({of}.softmax({d}) * torch.arange({of}.shape[{d}])).sum({d})")
            )


def _switched(site: Site) -> Iterator[Candidate]:
    """Gradients left on where they were switched off, for a block or for parameters."""
    for place in site.fault:
        for node in ast.walk(place.source.tree):
            line, last = getattr(node, "lineno", 0), getattr(node, "end_lineno", 0)
            parts = [item.context_expr for item in getattr(node, "items", [])]
            parts += getattr(node, "decorator_list", [])
            if line <= place.statement.lineno <= last:
                for part in parts:
                    if _OFF.search(place.text(part)):
                        own = Place(place.source, place.statement, place.frame, 0.0)
                        yield own.replaced(0.45, (part, "torch.enable_grad()"))
    for place in site.statements():
        for node in place.parts():
            if isinstance(node, ast.Attribute) and node.attr == "parameters":
                whole = place.value(node.value)
                for name, value in place.names().items():
                    if isinstance(value, nn.Module) and name != place.text(node.value):
                        if place.frame is site.frames[-1][0]:
                            inside = isinstance(whole, nn.Module) and value in whole.children()
                            yield place.replaced(0.9 - 0.2 * inside, (node.value, name))
            if isinstance(node, ast.Constant) and node.value is False:
                if "requires_grad" in place.text(place.statement):
                    yield place.replaced(0.8, (node, "True"))


def _ordered(site: Site) -> Iterator[Candidate]:
    """What names the parameters of a model, after the model has its last layer."""
    for source in site.program.texts:
        for block in ast.walk(source.tree):
            rows = _rows(block) if isinstance(block, (ast.Module, ast.FunctionDef)) else []
            for a, first in enumerate(rows):
                for later in rows[a + 1 :]:
                    pair = [(first, later), (later, first)]
                    if any(_names_parameters(x) & _gives_layers(y) for x, y in pair):
                        lines = source.lines
                        begin, end = first.lineno, later.end_lineno or later.lineno
                        own = first.end_lineno or begin
                        text = "\n".join((*lines[own:end], *lines[begin - 1 : own]))
                        yield Candidate(0.3, (_lines(source, begin, end, text),))


def _names_parameters(statement: ast.stmt) -> set[str]:
    text = ast.unparse(statement)
    return set(re.findall(r"([\w.]+?)(?:\.\w+)?\.(?:parameters|requires_grad_)\(", text)) | set(
        re.findall(r"([\w.]+)\.(?:parameters|requires_grad_)\(", text)
    )


def _gives_layers(statement: ast.stmt) -> set[str]:
    targets = statement.targets if isinstance(statement, ast.Assign) else []
    return {
        ast.unparse(t.value) for t in targets if isinstance(t, (ast.Attribute, ast.Subscript))
    } - {"self"}


def _out_of_place(place: Place) -> Iterator[Candidate]:
    """A write into a tensor as a new tensor."""
    statement = place.statement
    if isinstance(statement, ast.AugAssign) and not isinstance(statement.target, ast.Subscript):
        name, value = place.text(statement.target), place.text(statement.value)
        sign = re.search(r"(\S+)=$", place.text(statement)[len(name) :].split(value)[0].rstrip())
        if sign is not None:
            yield place.written(0.4, f"{name} = {name} {sign[1]} ({value})")
    elif isinstance(statement, (ast.Assign, ast.AugAssign)):
        target = [*getattr(statement, "targets", []), getattr(statement, "target", None)][0]
        if isinstance(target, ast.Subscript) and (name := _spelled(target.value)):
            yield place.written(0.4, f"{name} = {name}.clone()\n{{}}")
    elif isinstance(statement, ast.Expr) and _called(statement.value).endswith("_"):
        call = place.text(statement.value)
        name, _, method = call.partition("(")[0].rpartition(".")
        new = call.replace(f"{name}.{method}", f"{name}.{method[:-1]}", 1)
        yield place.written(0.4, f"{name} = {new}")


_SIGNS = {ast.Add: "+", ast.Sub: "-", ast.Mult: "*", ast.Div: "/"}


def _in_place(place: Place) -> Iterator[Candidate]:
    """A tensor that was bound anew, written in place: it stays a leaf, with its gradient."""
    value = getattr(place.statement, "value", None)
    if isinstance(value, ast.BinOp) and _spelled(value.left) in _bound(place.statement):
        if sign := _SIGNS.get(type(value.op)):
            text = f"{place.text(value.left)} {sign}= {place.text(value.right)}"
            yield place.written(0.4, text)


def _moved_into(place: Place, loop: ast.AST, carried: set[str]) -> Iterator[Candidate]:
    """What was computed once before a loop, computed in each of its rounds."""
    for before in place.source.tree.body:
        last = before.end_lineno or before.lineno
        if not isinstance(before, ast.Assign) or last >= loop.lineno:  # type: ignore[attr-defined]
            continue
        if carried.intersection(_bound(before)):
            continue
        value = Place(place.source, before, place.frame, 0.0).result()
        if isinstance(value, Tensor) and value.grad_fn is not None:
            lines, body = place.source.lines, loop.body[0]  # type: ignore[attr-defined]
            own = [" " * body.col_offset + row for row in lines[before.lineno - 1 : last]]
            text = "\n".join((*lines[last : body.lineno - 1], *own))
            edit = _lines(place.source, before.lineno, body.lineno - 1, text)
            yield Candidate(0.65, (edit,))


def _carried(loop: ast.AST) -> set[str]:
    """Names that a loop reads before it binds them anew."""
    found = set()
    for statement in ast.walk(loop):
        if isinstance(statement, ast.Assign):
            read = {_spelled(n) for n in ast.walk(statement.value)}
            found |= set(_bound(statement)) & read
    return found


_KINDS: tuple[Callable[[Site], Iterator[Candidate]], ...] = (
    spellings,
    misnamed,
    structures,
    calls,
    values,
    numbers,
    graphs,
)


def mend(
    error: BaseException,
    line: tuple[str, int] = ("", 0),
    first: Sequence[tuple[Edit, ...]] = (),
) -> tuple[Edit, ...] | None:
    """The smallest edits with which the program no longer raises; none where none was found;
    None where nothing could be tried.

    line: that is known to be at fault. first: edits that are tried before all others.
    """
    site = Site.of(error, line)
    if site is None or not site.raising or isinstance(site.raising[0].statement, ast.Raise):
        return None
    found = [Candidate(0.0, edits) for edits in first]
    for kind in _KINDS:
        with suppress(Exception):
            for candidate in kind(site):
                found += (candidate, *_twins(site, candidate))
    ordered = dict.fromkeys(each.edits for each in sorted(found, key=lambda each: each.cost))
    tries = [edits for edits in ordered if _parses(site.program, edits)][:_MOST]
    at = site.program.first(tries)
    if at is not None:
        return tries[at]
    return () if any(site.program.controls.values()) else None


def _twins(site: Site, candidate: Candidate) -> Iterator[Candidate]:
    """The same edit of statements of the block that differ by their names alone, too."""
    edit = candidate.edits[0]
    source = site.program.source(edit.file) if len(candidate.edits) == 1 else None
    for block in ast.walk(source.tree) if source is not None else ():
        rows = _rows(block)
        lines = [(s.lineno, s.end_lineno) for s in rows]
        if source is None or (edit.first, edit.last) not in lines:
            continue
        own = rows[lines.index((edit.first, edit.last))]
        edits = [edit]
        for row in rows:
            names = _renaming(own, row) if isinstance(row, (ast.Assign, ast.AugAssign)) else {}
            if row is not own and names and _bound(row) != _bound(own):
                parts = re.split(r"((?<![\w.])\w+)", edit.text)
                text = "".join(names.get(part, part) for part in parts)
                old = "\n".join(source.lines[row.lineno - 1 : row.end_lineno])
                edits.append(Edit(edit.file, row.lineno, row.end_lineno or 0, text, old))
        if len(edits) > 1:
            yield Candidate(candidate.cost + 0.03, tuple(edits))


def _rows(block: ast.AST) -> list[ast.stmt]:
    """The statements of a block; none of anything else."""
    body = getattr(block, "body", None)
    return body if isinstance(body, list) else []


def _renaming(one: ast.stmt, other: ast.stmt) -> dict[str, str]:
    """The names of one statement by those of another that is written alike; empty if it is not."""
    pairs = [[n.id for n in ast.walk(s) if isinstance(n, ast.Name)] for s in (one, other)]
    dumps = [re.sub(r"id='\w+'", "", ast.dump(s)) for s in (one, other)]
    if dumps[0] != dumps[1]:
        return {}
    found = dict(zip(*pairs, strict=True))
    return found if [found[name] for name in pairs[0]] == pairs[1] else {}


def _parses(program: Program, edits: Sequence[Edit]) -> bool:
    for edit in edits:
        source = program.source(edit.file)
        try:
            if source is None:
                return False
            ast.parse(edited(source, edits))
        except SyntaxError:
            return False
    return bool(edits)
