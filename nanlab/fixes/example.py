"""Rewriting by example: an operation as a program may write it, and where it stands guarded."""

from __future__ import annotations

import ast
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from typing import Any

import torch

from nanlab.fixes.candidates import Candidate
from nanlab.fixes.guards import Guard
from nanlab.fixes.match import Scope, is_new, leaves_of, written_by
from nanlab.fixes.term import CASTS, LIBRARIES, RENAMED, SIGNS, is_pure
from nanlab.operators import CARDS, OF_NUMBERS, card, having
from nanlab.program.expression import (
    OBJECTS,
    inside,
    is_plain,
    last_name,
    lines_of,
    nodes_of,
    parsed,
    span_of,
)
from nanlab.trace.chunk import Span

# One operation, whichever way a program writes it, and another in its place: both by example.
#
# ``sqrt($x)`` is ``torch.sqrt(a)``, ``a.sqrt()`` and ``a ** 0.5``. ``$x`` stands for an
# expression that is no plain number, ``$n`` and ``$p`` for any, ``$f`` for a function, ``$m``
# for the name of a method; ``...`` for the arguments that the example does not name.

Binding = dict[str, "ast.expr | tuple[ast.expr | ast.keyword, ...]"]
ANY = ("n", "p", "f", "d", "m")  # holes that a plain number may fill, or a function
MODULES = frozenset({*LIBRARIES, "nn", "math", "np", "numpy", "nanlab", "nanlab.safe", "safe"})
MODULES |= {"torch.nn", "torch.fft", "fft"}
_SIGNS = {**SIGNS, ast.Mod: "remainder"}
_INFINITIES = {"float('-inf')", "-float('inf')", "-torch.inf", "-math.inf", "-np.inf", "-inf"}
FAR = 1e4  # a number of the program's own beyond it is a mask's constant rather than a factor
_ATOMS = (ast.Name, ast.Call, ast.Attribute, ast.Subscript, ast.Constant, ast.List, ast.Tuple)
_LOWEST = re.compile(r"torch\.finfo\(.+\)\.min")
_HOLE = re.compile(r"\$(\w+)")
SHORT = 24  # characters of an operand that is written twice rather than named


@dataclass(frozen=True)
class Spelled:
    """An operation in the words of a program."""

    name: str
    operands: tuple[ast.expr, ...]
    rest: tuple[ast.keyword, ...] = ()
    function: ast.expr | None = None  # of what is no method
    more: bool = False  # of an example: there may be further arguments
    method: str = ""  # what the program calls it, where it is a method


def spellings(node: ast.AST) -> Iterator[Spelled]:
    """The operations that an expression may be read as."""
    if isinstance(node, ast.BinOp):
        name = _SIGNS.get(type(node.op), "")
        if name == "pow" and isinstance(node.right, ast.Constant) and node.right.value == 0.5:
            yield Spelled("sqrt", (node.left,))
        yield Spelled(name, (node.left, node.right))
    elif isinstance(node, ast.Call) and not any(isinstance(a, ast.Starred) for a in node.args):
        args, rest = tuple(node.args), tuple(k for k in node.keywords if k.arg not in (None, "out"))
        more = any(k.arg is None for k in node.keywords)
        if any(k.arg is None and getattr(k.value, "id", "") != "_more" for k in node.keywords):
            return
        if isinstance(node.func, ast.Attribute):
            name = _common(node.func.attr.rstrip("_") or node.func.attr)
            if is_module(node.func.value):
                yield Spelled(name, args, rest, node.func, more)
            else:
                operands, attr = (node.func.value, *args), node.func.attr
                called = attr if hasattr(torch.Tensor, attr) else ""
                if not _is_module(node.func.value):
                    yield Spelled(name, operands, rest, more=more, method=called)
                if not hasattr(torch.Tensor, node.func.attr) or _is_own(node.func):
                    yield Spelled("", args, rest, node.func, more)
        elif isinstance(node.func, ast.Name):
            yield Spelled(_common(node.func.id), args, rest, node.func, more)
        else:
            yield Spelled("", args, rest, node.func, more)


def _common(name: str) -> str:
    name = RENAMED.get(name, name)
    return card(name).like or name


def _is_own(node: ast.expr) -> bool:
    """Whether a called expression is a layer of the program's own, as ``self.norm``."""
    while isinstance(node, ast.Attribute | ast.Subscript):
        node = node.value
    return _is_module(node)


def _is_module(node: ast.expr) -> bool:
    return isinstance(node, ast.Name) and node.id in OBJECTS


def is_module(node: ast.expr) -> bool:
    """Whether an expression names a module of functions, ``torch`` or ``torch.linalg``."""
    text = ast.unparse(node)
    return text in MODULES or (text.startswith("torch.") and "(" not in text)


def _literal(node: ast.AST) -> float:
    """The number that an expression writes, the lowest of a dtype too; 0 for any other."""
    if _LOWEST.fullmatch(ast.unparse(node)):
        return -math.inf
    try:
        return float(ast.literal_eval(node))
    except (TypeError, ValueError):
        return 0.0


def is_number(node: ast.AST) -> bool:
    """Whether an expression is a plain number: a literal, a length, part of a shape, what math
    gives."""
    match node:
        case ast.Attribute(value=ast.Name(id="math")):
            return True
        case ast.Call(func=ast.Attribute(value=ast.Name(id="math"))):
            return True
        case ast.Call(func=ast.Attribute(attr="item")):
            return True
        case ast.Subscript():
            return is_number(node.value)
        case ast.BinOp():
            return is_number(node.left) and is_number(node.right)
        case ast.UnaryOp():
            return is_number(node.operand)
    return isinstance(node, ast.Constant) or is_plain(node)


@cache
def read(example: str) -> ast.expr:
    """An example, its holes as names."""
    text = _HOLE.sub(r"_hole_\1", example).replace("...", "**_more")
    return ast.parse(text, mode="eval").body


Resolve = Callable[[ast.Name], "ast.expr | None"]  # what a name was assigned


def bound(
    example: str, node: ast.AST, resolve: Resolve, known_as: Spelled | None = None
) -> Binding | None:
    """The expressions that the holes of an example match; None where it is another operation.

    known_as: the operation that ran, where the program calls it by a name of its own.
    """
    tree = read(example)
    found = next(_matches(tree, node, {}, resolve), None)
    if found is None and known_as is not None:
        ways = (b for want in spellings(tree) for b in _operations(want, known_as, {}, resolve))
        return next(ways, None)
    return found


def _matches(
    example: ast.AST, node: ast.AST, known: Binding, resolve: Resolve
) -> Iterator[Binding]:
    if isinstance(example, ast.Name) and example.id.startswith("_hole_"):
        name = example.id.removeprefix("_hole_")
        have = known.get(name)
        if isinstance(have, ast.AST):
            if ast.dump(have) == ast.dump(node):
                yield known
        elif isinstance(node, ast.expr) and (name in ANY or not is_number(node)):
            yield {**known, name: node}
        return
    if isinstance(example, ast.Name) and example.id == "INFINITY":
        if ast.unparse(node).replace('"', "'") in _INFINITIES:
            yield known
        return
    if isinstance(example, ast.Name) and example.id in ("LOW", "HIGH"):
        named = resolve(node) if isinstance(node, ast.Name) else None
        size = _literal(node if named is None else named)
        if (-size if example.id == "LOW" else size) > FAR:
            yield known
        return
    if isinstance(example, ast.Constant):
        if isinstance(node, ast.Constant) and node.value == example.value:
            yield known
        return
    if isinstance(node, ast.Name):
        assigned = resolve(node)
        node = node if assigned is None else assigned
    for want in spellings(example):
        for have_one in spellings(node):
            yield from _operations(want, have_one, known, resolve)


def _operations(
    want: Spelled, have: Spelled, known: Binding, resolve: Resolve
) -> Iterator[Binding]:
    hole = want.name.removeprefix("_hole_") if want.name.startswith("_hole_") else ""
    if hole == "m":
        if not have.method or have.method in CASTS:
            return
        known = {**known, hole: ast.Name(have.method, ast.Load())}
    elif hole:
        if have.function is None:
            return
        known = {**known, hole: have.function}
    elif want.name != have.name:
        return
    operands, more = want.operands, want.more
    if len(have.operands) < len(operands) or (len(have.operands) > len(operands) and not more):
        return
    named = {str(k.arg): k.value for k in have.rest}
    wanted = {str(k.arg): k.value for k in want.rest}
    if not set(wanted) <= set(named) or (set(named) - set(wanted) and not more):
        return
    pairs = [*zip(operands, have.operands, strict=False)]
    pairs += [(value, named[name]) for name, value in wanted.items()]
    if more:
        rest = [k for k in have.rest if k.arg not in wanted]
        known = {**known, "...": (*have.operands[len(operands) :], *rest)}
    yield from _all(pairs, known, resolve)


def _all(
    pairs: Sequence[tuple[ast.AST, ast.AST]], known: Binding, resolve: Resolve
) -> Iterator[Binding]:
    if not pairs:
        yield known
        return
    for found in _matches(*pairs[0], known, resolve):
        yield from _all(pairs[1:], found, resolve)


def filled(example: str, known: Binding, source: Source) -> str | None:
    """An example in the program's words; None where something impure would be evaluated twice."""
    text = example
    rest = known.get("...", ())
    if "..." in text:
        given = re.findall(r"\b(\w+)=", example)  # the program's own are left out
        others = rest if isinstance(rest, tuple) else ()
        more = ", ".join(source(a) for a in others if getattr(a, "arg", None) not in given)
        gone = r",\s*\.\.\.|\.\.\.,\s*|\.\.\."
        text = text.replace("...", more) if more else re.sub(gone, "", text)
    for name in dict.fromkeys(_HOLE.findall(example)):
        node = known.get(name)
        if not isinstance(node, ast.expr):
            return None
        own = source(node)
        if is_number(node):
            text = text.replace(f"${name}.float()", f"${name}")
        once = len(own) > SHORT or not is_pure(node) or _multiplies_matrices(node)
        if once and len(re.findall(rf"\${name}\b", text)) > 1:
            if not isinstance(node, ast.Name | ast.Attribute | ast.Subscript):
                quoted = own.replace("\\", r"\\")
                text = re.sub(rf"\${name}\b", f"(inner_{name} := {quoted})", text, count=1)
                text = re.sub(rf"\${name}\b", f"inner_{name}", text)
                continue
        text = re.sub(rf"\${name}\b", lambda m: _placed(m, own, node), text)  # noqa: B023
    return text


def _multiplies_matrices(node: ast.AST) -> bool:
    """Whether an expression multiplies matrices, which is not to be done twice."""
    named = having("matmul", "composed_product")
    return any(
        isinstance(n, ast.MatMult) or (isinstance(n, ast.Attribute) and n.attr in named)
        for n in ast.walk(node)
    )


def _placed(hole: re.Match[str], own: str, node: ast.expr) -> str:
    """An operand's text, in parentheses where its surroundings would take it apart."""
    before, after = hole.string[: hole.start()].rstrip(), hole.string[hole.end() :].lstrip()
    alone = (not before or before[-1] in "([,=") and (not after or after[0] in ")],")
    return own if alone or isinstance(node, _ATOMS) else f"({own})"


class Source:
    """The text of a part of a file, on one line."""

    def __init__(self, text: str) -> None:
        self.text = text

    def __call__(self, node: ast.AST) -> str:
        if isinstance(node, ast.keyword):
            return f"{node.arg}={self(node.value)}"
        first = getattr(node, "lineno", 0)
        if not first or first != node.end_lineno:  # type: ignore[attr-defined]
            return ast.unparse(node)
        row = _rows(self.text)[first - 1].encode()
        return row[node.col_offset : node.end_col_offset].decode()  # type: ignore[attr-defined]


@lru_cache(maxsize=16)
def _rows(text: str) -> list[str]:
    """The lines of a file as the parser counts them: a form feed ends no line."""
    return re.split(r"\r\n|\r|\n", text)


# A statement with one operation of it guarded: a value bounded, a mask put on the argument.

_NUMBERS = re.compile(r"\b[A-Z]{3,}\b")
_BENIGN = {one.name.removeprefix("linalg_"): one.benign for one in CARDS.values()}


@dataclass(frozen=True)
class Place:
    """Where an operation stands: its line, and the stretch of source that called it, if known."""

    line: int
    span: Span | None = None
    ran: str = ""  # the operator, where the stretch computed nothing else, or only with its result
    operands: int = 0  # how many it has, where the stretch computed with its result
    settings: tuple[tuple[str, int | float | str], ...] = ()  # and its keywords


def guarded(
    text: str,
    place: Place,
    guards: Sequence[Guard],
    numbers: Mapping[str, str],
    alone: bool = False,
) -> list[Candidate]:
    """The statement with the operation guarded, in each known way.

    Of several like operations in the statement, first the one at the place is guarded, then all.
    ``alone``: only the one at the place.
    """
    page = _Page.around(text, place)
    if page is None:
        return []
    made: dict[str, Candidate] = {}
    late: dict[str, Candidate] = {}  # behind all others
    known: dict[str, list[tuple[ast.expr, str]]] = {}
    standing: set[str] = set()
    last: set[str] = set()
    nodes = [node for node in page.nodes if not (alone and page.unpacks(node))]
    for guard in guards:
        for node in nodes:
            found = bound(_with(guard.before, numbers), node, page.assigned, page.known_as(node))
            if found and isinstance(f := found.get("f"), ast.expr) and last_name(f) in OF_NUMBERS:
                continue  # what it is given is no tensor
            if found and "$call" in guard.after:
                found = _as_called(node, found)
            new = filled(_with(guard.after, numbers), found, page.source) if found else None
            new = page.written(node, new) if new is not None else None
            if new is not None and guard.ahead:
                x = found["x"] if found else None
                if page.stands(node) and isinstance(x, ast.Name) and page.reads_again(x):
                    both = f"{new}\n{page.scope.replaced(page.statement, [])}"
                    title = _with(guard.title, numbers)
                    group = late if guard.last_resort else made
                    group.setdefault(both, page.candidate(title, both, guard.last_resort))
            elif new is not None:
                key = f"{_with(guard.title, numbers)}\0{guard.after}"
                changes = known.setdefault(key, [])
                last |= {key} if guard.last_resort else set()
                if found and page.computes(node, found):
                    standing.add(key)
                    changes.insert(0, (node, new))
                elif "too-large" in guard.when or not _is_whole(found.get("p") if found else None):
                    changes.append((node, new))
    for key, changes in known.items():
        if (standing or alone) and key not in standing:
            continue  # of something else on the line
        for chosen in (changes[:1] if key in standing else [], [] if alone else _apart(changes)):
            new = page.changed(chosen) if chosen else None
            if new is not None:
                made.setdefault(new, page.candidate(key.split("\0")[0], new, key in last))
    return list({**made, **late}.values())


def _as_called(node: ast.expr, found: Binding) -> Binding | None:
    """The operands of an operation, and the program's own function for it, with its own options."""
    if not isinstance(node, ast.Call) or found.get("x") not in node.args:
        return None
    held = [*found.values()]
    given: list[ast.expr | ast.keyword] = [*node.args, *node.keywords]
    return {**found, "call": node.func, "...": tuple(a for a in given if a not in held)}


def renamed_behind(
    text: str, place: Place, part: int, guards: Sequence[Guard], numbers: Mapping[str, str]
) -> list[Candidate]:
    """A statement that unpacks the operation's results, followed by one that guards a part.

    part: number of the result to guard.
    """
    page = _Page.around(text, place)
    match page and page.statement:
        case ast.Assign(targets=[ast.Tuple(elts=names)], value=value):
            pass
        case _:
            return []
    if page is None or not page.stands(value) or any(isinstance(n, ast.Starred) for n in names):
        return []
    name = names[part] if part < len(names) else None
    if not isinstance(name, ast.Name):
        return []
    made = []
    for guard in guards:
        new = filled(_with(guard.after, numbers), {"x": name}, page.source)
        if new is not None:
            both = f"{page.scope.replaced(page.statement, [])}\n{new}"
            made.append(page.candidate(_with(guard.title, numbers), both, guard.last_resort))
    return made


def _is_whole(exponent: object) -> bool:
    """Whether a power has a derivative everywhere: its exponent is a whole number from 1 on,
    written in the source."""
    number = exponent.value if isinstance(exponent, ast.Constant) else None
    return isinstance(number, int | float) and number >= 1 and number % 1 == 0


def masked(text: str, place: Place, weighed: bool = True) -> list[Candidate]:
    """The program's own mask put on the argument as well as on the result: the double where.

    weighed: whether a factor of the result counts as a mask, too.
    """
    page = _Page.around(text, place)
    if page is None:
        return []
    known: dict[tuple[str, bool, str], list[tuple[ast.expr, str]]] = {}
    here: dict[tuple[str, bool, str], list[tuple[ast.expr, str]]] = {}
    for node in page.nodes:
        for operation in spellings(node):
            benign = _BENIGN.get(operation.name)
            if benign is None or not operation.operands:
                continue
            operand = operation.operands[-1 if operation.name == "div" else 0]
            for condition, keeps in page.masks(node) if not is_number(operand) else ():
                if condition.endswith(_WEIGHED) and not weighed:
                    continue
                if operation.name == "div" and page.is_made_of(operand, condition):
                    continue  # it is 0 by itself where that is
                x = page.source(operand)
                inner = f"{condition}, {x}, {benign}" if keeps else f"{condition}, {benign}, {x}"
                change = (operand, f"torch.where({inner})")
                known.setdefault((condition, keeps, operation.name), []).append(change)
                if page.stands(node):
                    here.setdefault((condition, keeps, operation.name), []).append(change)
    found: dict[str, Candidate] = {}
    for key, changes in here.items():
        for chosen in (changes[:1], _apart(known[key])):
            new = page.changed(chosen)
            if new is not None:
                found.setdefault(new, page.candidate(_MASKED, new))
    return list(found.values())


_WEIGHED = " != 0"  # ends the condition that a factor makes
_MASKED = "the mask on the argument, too (the double where): what it hides is not computed"


def _with(example: str, numbers: Mapping[str, str]) -> str:
    return _NUMBERS.sub(lambda m: numbers.get(m[0], m[0]), example)


def _apart(changes: Sequence[tuple[ast.expr, str]]) -> list[tuple[ast.expr, str]]:
    """The outermost changes: those whose expressions lie inside no other's, each once."""
    changes = list({id(n): (n, t) for n, t in reversed(changes)}.values())[::-1]
    nodes = [n for n, _ in changes]
    return [
        (n, t) for n, t in changes if not any(n is not m and n in list(ast.walk(m)) for m in nodes)
    ]


@dataclass
class _Page:
    """A statement of the program, and its expressions."""

    scope: Scope
    statement: ast.stmt
    nodes: list[ast.expr]  # the outermost first
    place: Place
    source: Source

    @classmethod
    def around(cls, text: str, place: Place) -> _Page | None:
        found = _statement_at(text, place.line, place.span)
        if found is None:
            return None
        page = cls(*found, place, Source(text))
        if place.span is not None and not any(page.stands(n) for n in page.nodes):
            page.place = Place(place.line)
        return page

    def stands(self, node: ast.expr) -> bool:
        """Whether the operation was computed by this expression."""
        own, span = span_of(node), self.place.span
        if span is None or own == span:
            return True
        # of a chain over several lines a call begins with its own method's name
        return own[2:] == span[2:] and own[:2] <= span[:2] and span[0] > own[0]

    def unpacks(self, node: ast.expr) -> bool:
        """Whether the statement unpacks the expression, which gives several tensors."""
        targets = getattr(self.statement, "targets", ())
        taken = any(isinstance(t, ast.Tuple | ast.List) for t in targets)
        return taken and getattr(self.statement, "value", None) is node

    def reads_again(self, name: ast.Name) -> bool:
        """Whether the statement, or a later one, reads a name a second time."""
        behind = [s for s in self.scope.order if s.lineno >= self.statement.lineno]
        names = (n for n in _walk(behind) if isinstance(n, ast.Name) and n.id == name.id)
        return any(n is not name and isinstance(n.ctx, ast.Load) for n in names)

    def assigned(self, name: ast.Name) -> ast.expr | None:
        """The expression assigned to a name, where it can be repeated here with the same value."""
        made = self.scope.assignment(name.id, self.statement)
        if made is None or not is_pure(made[1]):
            return None
        return made[1] if self.scope.unchanged(made[1], made[0], self.statement) else None

    def computes(self, node: ast.expr, found: Binding) -> bool:
        """Whether the operation is this expression, or a part that the example itself names."""
        holes = [part for bound in found.values() for part in _walk(bound)]
        return any(self.stands(n) and n not in holes for n in self.nodes if n in _walk(node))

    def known_as(self, node: ast.expr) -> Spelled | None:
        """The operation that a function of the program's own is: ``root(x)``."""
        if not self.place.ran or not isinstance(node, ast.Call) or node.keywords:
            return None
        if self.place.span is None or not self.stands(node):
            return None
        if any(not isinstance(a, ast.Name | ast.Call | ast.BinOp) for a in node.args):
            return None  # it hands a function on, or a list
        if self.place.operands not in (0, len(node.args)):
            return None
        given = [ast.keyword(name, ast.Constant(value)) for name, value in self.place.settings]
        return Spelled(self.place.ran, tuple(node.args), tuple(given))

    def writes(self, node: ast.expr) -> bool | None:
        """Whether an in-place method is a whole statement; None if others may see what it
        writes."""
        if not isinstance(node, ast.Call) or not _is_in_place(node):
            return False
        alone = getattr(self.statement, "value", None) is node
        written: ast.expr = written_by(node) or node.func.value  # type: ignore[attr-defined]
        if isinstance(written, ast.Name):
            made = self.scope.assignment(written.id, self.statement)
            return alone if made is not None and is_new(made[1]) and alone else None
        return False if is_new(written) and not alone else None

    def _in_place(self, node: ast.expr, new: str) -> str | None:
        """The in-place method call that writes the new expression to memory that others may see."""
        assert isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)
        target, method = node.func.value, node.func.attr
        rest = _rest_of(new, _common(method.rstrip("_")), target)
        return f"{self.source(target)}.{method}({', '.join(rest)})" if rest else None

    def _augmented(self, statement: ast.AugAssign, new: str) -> str | None:
        """An augmented assignment with a new value, kept in place where others see the memory; None
        where they surely do and it cannot stay in place."""
        target = ast.unparse(statement.target)
        name = getattr(statement.target, "id", "")
        made = self.scope.assignment(name, statement) if name else None
        if made is None or not is_new(made[1]):
            left = ast.parse(target, mode="eval").body
            rest = _rest_of(new, _SIGNS.get(type(statement.op), ""), left)
            if rest and len(rest) == 1:
                whole = ast.AugAssign(statement.target, statement.op, ast.Constant(0))
                return ast.unparse(whole)[:-1] + rest[0]
        turns = (s.target for s in self.scope.order if isinstance(s, ast.For))
        view = made is not None and isinstance(made[1], ast.Name | ast.Attribute | ast.Subscript)
        seen = view or any(_is_named(n, name) for n in _walk([*turns]))
        return None if seen else f"{target} = {new}"

    def _shows(self, node: ast.expr) -> bool:
        """Whether an expression is a tensor, or a view of one, that a method writes into."""
        for call in self.nodes:
            if isinstance(call, ast.Call) and _is_in_place(call):
                part: ast.expr = call.func.value  # type: ignore[attr-defined]
                while not is_new(part):
                    if part is node:
                        return True
                    if not isinstance(part, ast.Call) or not isinstance(part.func, ast.Attribute):
                        break
                    part = part.func.value
        return False

    def written(self, node: ast.expr, new: str) -> str:
        """The new expression, copied into the argument of ``out=`` where the old call has one."""
        given = node.keywords if isinstance(node, ast.Call) else ()
        place = next((self.source(k.value) for k in given if k.arg == "out"), "")
        return f"{place}.copy_({new})" if place else new

    def changed(self, changes: Sequence[tuple[ast.expr, str]]) -> str | None:
        """The statement with these expressions written anew."""
        written = [self.writes(node) for node, _ in changes]
        if any(self._shows(node) for node, _ in changes):
            return None
        kept = [
            (node, self._in_place(node, new) if way is None else new)
            for (node, new), way in zip(changes, written, strict=True)
        ]
        changes = [(node, new) for node, new in kept if new is not None]
        if len(changes) < len(kept):
            return None
        (node, new), statement = changes[0], self.statement
        if True in written and isinstance(statement, ast.Return):
            return self.scope.in_place(statement, f"return {new}")
        if True in written:
            names = [ast.unparse(t) for t in getattr(statement, "targets", ())]
            target: Any = node
            names.append(ast.unparse(written_by(node) or target.func.value))
            return self.scope.in_place(statement, f"{' = '.join(names)} = {new}")
        if isinstance(statement, ast.AugAssign) and getattr(node, "right", 0) is statement.value:
            whole = self._augmented(statement, new)
            return self.scope.in_place(statement, whole) if whole is not None else None
        try:
            return self.scope.replaced(statement, list(changes))
        except SyntaxError:
            return None

    def candidate(self, title: str, text: str, last_resort: bool = False) -> Candidate:
        first, _, last, _ = span_of(self.statement)
        return Candidate(title, first, last, text, last_resort)

    # -- masks

    def masks(self, node: ast.expr) -> Iterator[tuple[str, bool]]:
        """(condition, whether true where kept) of the masks on an expression's result."""
        for outer in self.nodes:
            if outer is not node:
                yield from self._mask(outer, lambda part: any(n is node for n in ast.walk(part)))
        made = self.statement
        target = made.targets[0] if isinstance(made, ast.Assign) else None
        if not isinstance(target, ast.Name):
            return
        for later in self.scope.order:
            if later.lineno <= made.lineno:
                continue
            for part in ast.walk(later):
                for condition, keeps in self._mask(part, lambda n: _is_named(n, target.id)):
                    tree = ast.parse(condition, mode="eval")
                    if self.scope.unchanged(tree, made, later):
                        yield condition, keeps

    def is_made_of(self, operand: ast.expr, condition: str) -> bool:
        """Whether an operand is computed from a factor that is not 0, such as its norm."""
        factor = condition.removesuffix(_WEIGHED)
        made, _ = self.scope.term(self.statement, operand)
        return factor != condition and any(
            t.node is not None and t is not made and ast.unparse(t.node) == factor
            for t in leaves_of(made)
        )

    def _mask(self, node: ast.AST, holds: object) -> Iterator[tuple[str, bool]]:
        assert callable(holds)
        for each in spellings(node):
            parts = each.operands
            if each.name == "where" and len(parts) == 3 and (holds(parts[1]) or holds(parts[2])):
                yield self.source(parts[0]), bool(holds(parts[1]))
            if each.name in ("masked_fill", "masked_fill_") and len(parts) == 3 and holds(parts[0]):
                yield self.source(parts[1]), False
            if each.name == "mul" and len(parts) == 2:
                for kept, factor in (parts, parts[::-1]):
                    if holds(kept) and isinstance(factor, ast.Name | ast.Attribute | ast.Subscript):
                        yield f"{self.source(factor)}{_WEIGHED}", True
        target = node.targets[0] if isinstance(node, ast.Assign) else None
        if isinstance(target, ast.Subscript) and holds(target.value):
            if isinstance(target.slice, ast.Compare | ast.Name):
                yield self.source(target.slice), False


@lru_cache(maxsize=64)
def _statement_at(
    text: str, line: int, span: Span | None
) -> tuple[Scope, ast.stmt, list[ast.expr]] | None:
    """The statement on a line, the function around it, and its expressions. Of several statements
    on the line, the one that holds a stretch of source."""
    try:  # code of its own where _rename changes some
        (scope,) = Scope.within_code(text, (ast.parse if _aliases(text) else parsed)(text), line, 1)
    except SyntaxError:
        return None
    simple = (s for s in scope.order if not hasattr(s, "body") and not isinstance(s, ast.Match))
    there = [s for s in simple if line in lines_of(s)]
    holding = [s for s in there if span is not None and inside(span, span_of(s))]
    for statement in holding or there:
        nodes = [n for n in ast.walk(statement) if isinstance(n, ast.BinOp | ast.Call)]
        _rename(nodes, text)
        if isinstance(statement, ast.AugAssign):
            target = ast.parse(ast.unparse(statement.target), mode="eval").body
            ast.copy_location(target, statement.target)
            whole = ast.BinOp(target, statement.op, statement.value)
            nodes.insert(0, ast.copy_location(whole, statement))
        return scope, statement, list(nodes)
    return None


def _is_in_place(node: ast.Call) -> bool:
    """Whether a call is of a method that writes into its tensor."""
    name = node.func.attr if isinstance(node.func, ast.Attribute) else ""
    return name.endswith("_") and not name.endswith("__")


def _rest_of(new: str, name: str, first: ast.expr) -> list[str] | None:
    """The further operands of an operation on a tensor that keeps its dtype; None where the code
    computes something else."""
    source = Source(new)
    for each in spellings(ast.parse(new, mode="eval").body):
        if each.name != name or not each.operands or each.function is not None:
            continue
        if ast.dump(each.operands[0]) == ast.dump(first):
            rest = [*each.operands[1:], *each.rest]
            if not any(isinstance(n, ast.Attribute) and n.attr in CASTS for n in _walk(rest)):
                return [source(n) for n in rest]
    return None


def _walk(parts: ast.AST | Sequence[ast.AST]) -> list[ast.AST]:
    return [
        n for part in ([parts] if isinstance(parts, ast.AST) else parts) for n in ast.walk(part)
    ]


def _rename(nodes: Sequence[ast.expr], text: str) -> None:
    """Name calls of aliases after their function: with ``ce = F.cross_entropy``, ``ce`` is that."""
    known = _aliases(text)
    for node in nodes:
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            node.func.id = known.get(node.func.id, node.func.id)


@lru_cache(maxsize=16)
def _aliases(text: str) -> dict[str, str]:
    """What a file calls the functions of modules that it calls, and their own names."""
    nodes = nodes_of(parsed(text))
    called = {n.func.id for n in nodes if isinstance(n, ast.Call) and isinstance(n.func, ast.Name)}
    return {
        n.targets[0].id: n.value.attr
        for n in nodes
        if isinstance(n, ast.Assign)
        and isinstance(n.targets[0], ast.Name)
        and n.targets[0].id in called
        and isinstance(n.value, ast.Attribute)
        and is_module(n.value.value)
    }


def _is_named(node: ast.AST, name: str) -> bool:
    return isinstance(node, ast.Name) and node.id == name
