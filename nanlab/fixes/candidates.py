"""What may be written instead of the expressions of a line, from its text alone."""

from __future__ import annotations

import ast
import math
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from types import CodeType
from typing import Any

import torch
from torch import Tensor

from nanlab.errors import NanlabError
from nanlab.fixes.catalogue import ALTERNATIVES
from nanlab.fixes.logarithms import is_zeros
from nanlab.fixes.loops import in_logarithms
from nanlab.fixes.match import Rewriting, Scope, rewritings
from nanlab.fixes.removable import Removable, is_spread, removables, series_text
from nanlab.fixes.term import is_pure, term_of
from nanlab.formats import HALF_PRECISION
from nanlab.operators import having
from nanlab.program.expression import (
    all_but_last,
    assigned_pairs,
    inside,
    lines_of,
    names_in,
    names_of,
    nodes_of,
    parsed,
    replaced,
    span_of,
    whole_of,
)
from nanlab.program.rerun import grouped
from nanlab.safe.series import NotRemovableError, Series, series
from nanlab.trace.chunk import Span

POINTS = (0.0, 1.0, -1.0, math.pi, 0.5, 2.0)  # where expressions of programs are singular
HEALTHY = (0.37, 1.61, 0.83, 1.27, 0.59, 2.3)  # values for what else they read
_FACTORS = torch.tensor([[1.0, 1.3], [0.7, 1.1]], dtype=torch.float64)  # where those are summed
_NAMES = {"torch": torch, "math": math, "F": torch.nn.functional, "nn": torch.nn}


@dataclass(frozen=True)
class Candidate:
    """Lines that may stand instead of others. Nothing has been tried yet."""

    title: str
    first: int
    last: int
    text: str  # without the indentation of the first line
    last_resort: bool = False  # worth its line only where no other is right
    also: tuple[tuple[int, int, str], ...] = ()  # other lines that it wants, each as these


@lru_cache(maxsize=32)
def candidates(text: str, line: int, dtype: torch.dtype = torch.float32) -> tuple[Candidate, ...]:
    """Forms of the statements that compute with this line's expressions, the best first.

    Known functions come before series, series in plain torch before ``nanlab.safe.removable``.
    """
    found: dict[tuple[Any, ...], Candidate] = {}
    for made in _forms(text, line, dtype):
        found.setdefault((made.first, made.text, made.also), made)
    return tuple(found.values())


def _forms(text: str, line: int, dtype: torch.dtype) -> Iterator[Candidate]:
    for r in _either(text, line):
        yield Candidate(r.title, r.first, r.last, r.text)
        if dtype in HALF_PRECISION:
            yield from _in_float32(r)
    yield from _with_derivatives(text, line)
    yield from _with_operands_named(text, line)
    yield from _loops(text, line)
    yield from _by_groups(text, line)
    places = removables(text, line)
    made = [(site, form) for site in places for form in _in_torch(site, dtype)]
    yield from (form for _, form in made)
    yield from _together(places, dtype)
    calls = [(site, call) for site in reversed(places) for call in _in_nanlab(site)]
    called = [(site, _by_nanlab(site, site.edited(call))) for site, call in calls]
    yield from _of_all_readers([*made, *reversed(called)], line)
    yield from _of_all_parts(calls)
    yield from (form for _, form in called)


def _either(text: str, line: int) -> tuple[Rewriting, ...]:
    """The forms of the catalogue, then the alternatives, which are mostly no better."""
    return (*rewritings(text, line), *rewritings(text, line, ALTERNATIVES))


def _with_derivatives(text: str, line: int) -> Iterator[Candidate]:
    """Forms of a line in a custom Function's forward, together with forms of its backward: the
    derivative written by hand computes with the same numbers."""
    scope = Scope.around(text, line)
    for owner in scope.classes.values() if scope is not None else ():
        functions = {s.name: s for s in owner.body if isinstance(s, ast.FunctionDef)}
        forward, backward = map(functions.get, ("forward", "backward"))
        if forward is None or backward is None or line not in lines_of(forward):
            continue
        forms = (next(iter(rewritings(text, s.lineno)), None) for s in backward.body)
        also = tuple((r.first, r.last, r.text) for r in forms if r is not None)
        for r in rewritings(text, line) if also else ():
            yield Candidate(f"{r.title} here and in backward", r.first, r.last, r.text, also=also)


def _with_operands_named(text: str, line: int) -> Iterator[Candidate]:
    """Forms of the line after the argument of an earlier function gets a name. With
    ``p = softmax(self.head(x), 1)`` above it, that name is ``logits = self.head(x)``."""
    scope = Scope.around(text, line)
    if scope is None:
        return
    taken = {*names_of(text)}
    rows, shift = text.splitlines(), 0
    makers: list[tuple[int, int, str]] = []
    for statement in scope.statements():
        if (statement.end_lineno or statement.lineno) >= line:
            continue
        found = _of_module(statement)
        if found is None or len(makers) == MOST_NAMED:
            continue
        target, call = found
        name = next(n for n in ("logits", f"{target}_logits", f"{target}_given") if n not in taken)
        taken.add(name)
        new = f"{name} = {ast.unparse(call)}\n{scope.replaced(statement, [(call, name)])}"
        first, _, last, _ = span_of(statement)
        makers.append((first, last, new))
        indent = rows[first - 1 + shift][: statement.col_offset]
        made = [indent + row for row in new.split("\n")]
        rows[first - 1 + shift : last + shift] = made
        shift += len(made) - (last - first + 1)
    for r in _either("\n".join(rows) + "\n", line + shift) if makers else ():
        read = names_in(ast.parse(r.new))
        used = tuple(m for m in makers if m[2].split(" = ")[0] in read)
        if used and r.first > makers[-1][1] + shift:
            yield Candidate(r.title, r.first - shift, r.last - shift, r.text, also=used)


MOST_NAMED = 3


def _loops(text: str, line: int) -> Iterator[Candidate]:
    for lines in in_logarithms(text, line):
        own = next(each for each in lines if each[0] <= line <= each[1])
        rest = tuple(each for each in lines if each is not own)
        yield Candidate("the loop in logarithms", *own, also=rest)


def _by_groups(text: str, line: int) -> Iterator[Candidate]:
    """An exponential less the largest exponent of its group, where its divisor is summed by groups:
    ``torch.zeros(n).index_add(0, index, weight)``."""
    scope = Scope.around(text, line)
    statements = list(scope.statements()) if scope is not None else []
    own = next((s for s in statements if s.lineno == line), None)
    if scope is None or not isinstance(own, ast.Assign) or not isinstance(own.targets[0], ast.Name):
        return
    terms = [term_of(n) for n in ast.walk(own.value) if isinstance(n, ast.Call)]
    powers = [t.parts[0].node for t in terms if t.name == "exp" and t.parts[0].node is not None]
    taken = {*names_of(text)}
    largest = next(name for name in ("largest", "largest_of_group") if name not in taken)
    for statement in statements if len(powers) == 1 else ():
        for name, zeros, index in _added_up(statement, own.targets[0].id):
            made = scope.assignment(zeros.id, statement) if isinstance(zeros, ast.Name) else None
            score, at = ast.unparse(powers[0]), ast.unparse(index)
            begin = ast.unparse(_read_as(own.targets[0].id, powers[0], made[1] if made else zeros))
            if is_zeros(begin):
                reduced = name.replace("add", "reduce")
                back = f".gather(0, {at})" if name.startswith("scatter") else f"[{at}]"
                held = f"({score}).detach(), 'amax', include_self=False"
                before = f"{largest} = {begin}.{reduced}(0, {at}, {held})"
                read = f"{score} - {largest}{back}"
                new = (
                    f"{ast.unparse(ast.parse(before))}\n{scope.replaced(own, [(powers[0], read)])}"
                )
                yield Candidate("the largest of each group taken off", line, lines_of(own)[-1], new)


def _read_as(name: str, what: ast.expr, node: ast.expr) -> ast.AST:
    """The expression with another one in place of a name, so that its dtype and device are used."""
    made: ast.AST = replaced(
        node, lambda n: what if isinstance(n, ast.Name) and n.id == name else None
    )
    return made


def _added_up(statement: ast.stmt, name: str) -> Iterator[tuple[str, ast.expr, ast.expr]]:
    """(operator, zeros, index) of each place where a name's values are added to zeros by index."""
    for node in ast.walk(statement):
        match node:
            case ast.Call(
                func=ast.Attribute(value=zeros, attr=attr),
                args=[ast.Constant(value=0), index, ast.Name(id=added)],
            ) if added == name and attr.rstrip("_") in having("accumulates"):
                yield attr.rstrip("_"), zeros, index


def _of_module(statement: ast.stmt) -> tuple[str, ast.expr] | None:
    """(name, argument) of the first assignment of a known function's result in a statement, where a
    module or a function of the program computes the argument: ``self.head(x)`` in
    ``p = softmax(self.head(x), 1)``."""
    for target, value in assigned_pairs(statement) if isinstance(statement, ast.Assign) else ():
        for node in (n for n in ast.walk(value) if isinstance(n, ast.Call)):
            t = term_of(node)
            given = t.parts[0].node if t.kind == "call" and t.parts else None
            if t.name in _NAMED and given is not None and not is_pure(given):
                return (target.id, given) if isinstance(target, ast.Name) else None
        if not is_pure(value):  # what it calls comes first
            return None
    return None


_NAMED = having("unary") | {"softmax"}


def carried_over(
    text: str, span: Span, line: int, lines: Mapping[int, Collection[Span | None]]
) -> list[Candidate]:
    """Forms of a line that need the operand of a call in another function. That function is changed
    to return the operand, without the call.

    span: the place of the call. lines: the lines that read its result, each with the places of the
    operations that read it.
    """
    here, there = Scope.around(text, line), Scope.around(text, span[0])
    if here is None or there is None or here.body[0].lineno == there.body[0].lineno:
        return []
    own, other = _class_of(text, line), _class_of(text, span[0])
    if own is not None and other is not None and own is not other:
        return []  # what an object of one class gives is no affair of another's
    calls = [n for s in there.statements() for n in ast.walk(s) if isinstance(n, ast.Call)]
    call = next((n for n in calls if span_of(n) == span), None)
    operand = _operand(call)
    if call is None or operand is None or id(call) not in there.owners:
        return []
    owner = there.owners[id(call)]
    first, _, last, _ = span_of(owner)
    maker = first, last, there.replaced(owner, [(call, ast.unparse(operand))])
    operations = {at for spans in lines.values() for at in spans}
    readers = [s for s in here.statements() if any(each in lines_of(s) for each in lines)]
    if any(not any(each in lines_of(s) for s in readers) for each in lines):
        return []
    found: list[Candidate] = []
    for _, reads in sorted(_unassigned(here, readers).items()):
        places = [span_of(n) for s in readers for n in ast.walk(s) if _is_one_of(n, reads)]
        if not all(any(inside(own, at) for own in places) for at in operations if at):
            continue  # some operation on the result computes with something else
        calls_of = {read: _over(call, operand, read) for read in reads}
        changed = _text_with_calls(text, here, readers, calls_of)
        rows = changed.splitlines()
        forms = [Candidate(r.title, r.first, r.last, r.text) for r in _either(changed, line)]
        for form in (*forms, *_with_operands_named(changed, line)):
            written = {form.first, *(first for first, _, _ in form.also)}
            others = [s for s in readers if s.lineno not in written]
            rest = [(s.lineno, lines_of(s)[-1], _unindented(rows, s)) for s in others]
            found.append(replace(form, also=(maker, *form.also, *rest)))
    return found


def _class_of(text: str, line: int) -> ast.ClassDef | None:
    classes = (n for n in nodes_of(parsed(text)) if isinstance(n, ast.ClassDef))
    return next((c for c in classes if line in lines_of(c)), None)


def spelled_out(
    text: str, span: Span, name: str, numbers: tuple[Any, ...] | None, several: bool
) -> tuple[str, Span] | None:
    """The file with a module's call written as its operator, and the place of that operator:
    ``torch.softmax(x, 1)``, ``torch.sigmoid(net[:-1](x))``. None where it cannot be written so.

    several: whether the call is that of a Sequential, whose last layer is the operator.
    """
    calls = [n for n in nodes_of(parsed(text)) if isinstance(n, ast.Call)]
    call = next((n for n in calls if span_of(n) == span), None)
    line, begin, last, end = span
    if call is None or numbers is None or line != last or not hasattr(torch, name):
        return None
    if term_of(call).kind == "call" or len(call.args) != 1 or call.keywords:
        return None
    operand = all_but_last(call) if several else call.args[0]
    new = f"torch.{name}({', '.join([ast.unparse(operand), *map(repr, numbers)])})"
    rows = text.splitlines()
    row = rows[line - 1].encode()
    rows[line - 1] = (row[:begin] + new.encode() + row[end:]).decode()
    return "\n".join(rows) + "\n", (line, begin, line, begin + len(new.encode()))


def takes_all_but_last(candidate: Candidate) -> bool:
    """Whether some of its lines call a Sequential without its last layer."""
    texts = (candidate.text, *(text for _, _, text in candidate.also))
    return any(whole_of(n) for text in texts for n in ast.walk(ast.parse(text)))


def _operand(call: ast.Call | None) -> ast.expr | None:
    """The operand of a call of a known function whose other arguments are constants; else None."""
    t = term_of(call) if call is not None else None
    if call is None or t is None or t.kind != "call" or not t.parts:
        return None
    given = t.parts[0].node
    others = [a for a in call.args if a is not given] + [k.value for k in call.keywords]
    fixed = all(isinstance(a, ast.Constant | ast.UnaryOp) for a in others)
    return given if fixed else None


def _is_one_of(node: ast.AST, texts: Collection[str]) -> bool:
    return isinstance(node, ast.expr) and ast.unparse(node) in texts


def _over(call: ast.Call, operand: ast.expr, read: str) -> str:
    """The call with another operand."""
    text, own = ast.unparse(call), ast.unparse(operand)
    made, given = (ast.parse(each, mode="eval").body for each in (text, read))
    return ast.unparse(replaced(made, lambda n: given if ast.unparse(n) == own else None))


def _unassigned(scope: Scope, readers: Collection[ast.stmt]) -> dict[str, set[str]]:
    """Expressions that the statements read and the function does not compute itself: its parameters
    and the results of calls, grouped by the called function."""
    unpacked = [
        target.id
        for statement in scope.statements()
        for several in ast.walk(statement)
        if isinstance(several, ast.Tuple) and isinstance(several.ctx, ast.Store)
        for target in several.elts
        if isinstance(target, ast.Name)
    ]
    given = (scope.parameters - {"self"}) | {n for n in unpacked if unpacked.count(n) == 1}
    found: dict[str, set[str]] = {}
    for statement in readers:
        for node in ast.walk(statement):
            made: ast.AST | None = node if isinstance(node, ast.Call) else None
            if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load):
                assigned = scope.assignment(node.id, statement)
                made = assigned[1] if assigned else None
                if assigned is None and node.id in given:
                    found[node.id] = {node.id}
            if isinstance(made, ast.Call) and is_pure(ast.Call(made.func, [], [])):
                continue  # a known function of what another gives
            if made is not None and not is_pure(made):
                of = getattr(made, "func", None)
                group = f"{ast.unparse(of)}()" if of is not None else ast.unparse(node)
                found.setdefault(group, set()).add(ast.unparse(node))
    return found


def _text_with_calls(
    text: str, scope: Scope, readers: Collection[ast.stmt], calls: Mapping[str, str]
) -> str:
    """The file with expressions in some statements replaced by calls."""
    rows = text.splitlines()
    for s in readers:
        read = [(n, calls.get(ast.unparse(n))) for n in ast.walk(s) if isinstance(n, ast.expr)]
        loaded = [
            (node, call)
            for node, call in read
            if call is not None and isinstance(getattr(node, "ctx", ast.Load()), ast.Load)
        ]
        new = scope.replaced(s, loaded)
        indent = rows[s.lineno - 1][: s.col_offset]
        rows[s.lineno - 1 : s.end_lineno] = [indent + row for row in new.split("\n")]
    return "\n".join(rows) + "\n"


def _unindented(rows: list[str], statement: ast.stmt) -> str:
    part = rows[statement.lineno - 1 : statement.end_lineno]
    return "\n".join(row[statement.col_offset :] for row in part)


def _in_float32(r: Rewriting) -> Iterator[Candidate]:
    """The call that an expression became, on float32: half precision rounds it more."""
    call = ast.parse(r.new, mode="eval").body
    if not isinstance(call, ast.Call) or not call.args or r.text.count(r.new) != 1:
        return
    operand = ast.unparse(call.args[0])
    atom = isinstance(call.args[0], ast.Name | ast.Attribute | ast.Call | ast.Subscript)
    call.args[0] = ast.parse(f"{operand if atom else f'({operand})'}.float()", mode="eval").body
    text = r.text.replace(r.new, ast.unparse(call))
    yield Candidate(f"{r.title} in float32", r.first, r.last, text, last_resort=True)


def _in_torch(site: Removable, dtype: torch.dtype) -> Iterator[Candidate]:
    """The series in plain torch, where the expression is a function of one variable."""
    fn = _function(site, {})
    if site.others or site.sums or fn is None:
        return
    for at in singular_points(fn, site.numbers):
        try:
            known = fn.series(at)
            made = series_text(fn, site.expression, site.variable, at, dtype, site.names, known)
        except (NanlabError, ValueError):
            continue
        text = site.edited(made.expression, made.lines)
        yield Candidate(f"the series near {at:g}", site.first, site.last, text)


def _together(places: list[Removable], dtype: torch.dtype) -> Iterator[Candidate]:
    """All series of one statement together, each in its own expression."""
    lines: list[str] = []
    changes: list[tuple[ast.expr, str]] = []
    taken: set[str] = set()
    statement = None
    for site in places:  # the smallest first
        fn, node = _function(site, {}), site.node
        if site.others or site.sums or fn is None or not site.takes_lines:
            continue
        if statement is not None and site.statement is not statement:
            continue
        if any(n in ast.walk(node) or node in ast.walk(n) for n, _ in changes):
            continue
        for at in singular_points(fn, site.numbers):
            try:
                names, known = {*site.names, *taken}, fn.series(at)
                made = series_text(fn, site.expression, site.variable, at, dtype, names, known)
            except (NanlabError, ValueError):
                continue
            taken |= {row.split(" = ")[0] for row in made.lines}
            lines += made.lines
            changes.append((site.node, made.expression))
            statement = site.statement
            break
    if len(changes) > 1 and statement is not None:
        text = "\n".join([*lines, places[0].scope.replaced(statement, changes)])
        first, _, last, _ = span_of(statement)
        yield Candidate("the series of each", first, last, text)


def _of_all_readers(made: list[tuple[Removable, Candidate]], line: int) -> Iterator[Candidate]:
    """The forms of all statements that read what the line assigns, applied together, where there
    are several such statements. Each statement takes its first form."""
    for scope in {id(site.scope): site.scope for site, _ in made}.values():
        own = next((s for s in scope.statements() if s.lineno == line), None)
        if not isinstance(own, ast.Assign) or not isinstance(own.targets[0], ast.Name):
            continue
        forms: dict[ast.stmt, Candidate] = {}
        for site, form in made:
            if site.scope is scope:
                forms.setdefault(site.statement, form)
        name = own.targets[0].id
        readers = [s for s in scope.statements() if s is not own and name in names_in(s)]
        if len(readers) > 1 and all(s in forms for s in readers):
            first, *rest = (forms[s] for s in readers)
            yield replace(first, also=tuple((each.first, each.last, each.text) for each in rest))


def _of_all_parts(calls: list[tuple[Removable, str]]) -> Iterator[Candidate]:
    """The calls for several parts of one statement together, the largest parts first."""
    for statement, group in grouped(calls, lambda each: each[0].statement).items():
        changes: list[tuple[ast.expr, str]] = []
        for site, call in group:
            if not any(n in ast.walk(site.node) or site.node in ast.walk(n) for n, _ in changes):
                changes.append((site.node, call))
        if len(changes) > 1:
            yield _by_nanlab(group[0][0], group[0][0].scope.replaced(statement, changes))


def _by_nanlab(site: Removable, text: str) -> Candidate:
    return Candidate("nanlab.safe.removable", site.first, site.last, text)


def _in_nanlab(site: Removable) -> Iterator[str]:
    """Calls of ``nanlab.safe.removable`` for the expression, around a number or another operand."""
    others: dict[str, float] = dict(zip(site.others, HEALTHY, strict=False))
    if len(others) < len(site.others):
        return
    others |= {name: True for name in others if name.strip("()") in site.conditions}
    fn = _function(site, others)
    if fn is None:
        return
    points: list[tuple[str, float]] = [(f"{at:g}", at) for at in singular_points(fn, site.numbers)]
    if not site.sums:
        met = (
            (sign + name, float(f"{sign}{v}"))
            for name, v in others.items()
            if v is not True
            for sign in ("", "-")
        )
        points += [(name, at) for name, at in met if _is_singular(fn, at)]
    for name, at in points:
        try:
            if not site.sums:  # whether there is a series depends on what is summed
                fn.series(at)
        except NanlabError:
            continue
        yield site.as_call(name)


def singular_points(fn: Function, written: Iterable[float] = ()) -> list[float]:
    """Points where a function or its derivative is not finite, of those in use, and of the numbers
    that are written in it."""
    more = (x for c in written for x in (c, -c, 1 / c, -1 / c))
    return [at for at in dict.fromkeys((*POINTS, *more)) if _is_singular(fn, at)]


def _is_singular(fn: Function, at: float) -> bool:
    """Whether the value or the derivative is not finite at a point, and both are next to it."""
    return not _is_finite(fn, at) and any(_is_finite(fn, at + d) for d in (-1e-3, 1e-3))


@lru_cache(maxsize=1024)
def _is_finite(fn: Function, at: float) -> bool:
    x = torch.tensor(at, dtype=torch.float64, requires_grad=True)
    try:
        value = fn(x)
        value = torch.view_as_real(value) if value.is_complex() else value
        (slope,) = torch.autograd.grad(value.sum(), x)
    except Exception:
        return True  # nothing is known of it
    return bool(value.isfinite().all() and slope.isfinite().all())


class Function:
    """The expression as a function of its variable, the others held at healthy numbers."""

    def __init__(self, code: CodeType, others: dict[str, Tensor]) -> None:
        self.code, self.others = code, others
        self._series: dict[float, Series | str] = {}  # by place; or why there is none

    def __call__(self, x: Tensor) -> Tensor:
        """The expression at x."""
        value: Tensor = eval(self.code, {**_NAMES, **self.others, "_variable": x})
        return value

    def series(self, at: float) -> Series:
        """Its series around a point, sought once. Raises NotRemovableError where it has none."""
        if at not in self._series:
            try:
                self._series[at] = series(self, at)
            except NotRemovableError as error:
                self._series[at] = str(error)
        found = self._series[at]
        if isinstance(found, str):
            raise NotRemovableError(found)
        return found


def _function(site: Removable, others: dict[str, float]) -> Function | None:
    """The expression over its variable; None where it reads what nobody knows."""
    text = site.over("_variable", {name: f"_other{i}" for i, name in enumerate(others)})
    return _compiled(text, tuple(others.values()), site.sums)


def _without_spread(node: ast.expr) -> ast.expr | None:
    return node.value if isinstance(node, ast.Subscript) and is_spread(node) else None


@lru_cache(maxsize=64)
def _compiled(text: str, others: tuple[float, ...], sums: bool) -> Function | None:
    # of a single number, which has no dimensions
    tree = replaced(ast.parse(text, mode="eval"), _without_spread)
    read = names_in(tree)
    given = {
        f"_other{i}": (
            torch.tensor(True)  # by which ``where`` decides
            if v is True
            else torch.tensor(v, dtype=torch.float64) * (_FACTORS if sums else 1.0)
        )
        for i, v in enumerate(others)
    }
    if not read <= {*_NAMES, *given, "_variable"}:
        return None
    return Function(compile(tree, "<expression>", "eval"), given)
