"""Where a program writes what the catalogue knows a better form of, and the edit that writes it
so."""

from __future__ import annotations

import ast
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction

from nanlab.analysis.rewriting.catalogue import CATALOGUE, Rule
from nanlab.analysis.rewriting.scope import Scope
from nanlab.analysis.rewriting.term import (
    Term,
    called,
    multiplied,
    negated,
    number,
    raised,
    summed,
    term_of,
)

Binding = dict[str, Term]
MOST_POWERS = 16


@dataclass(frozen=True)
class Rewriting:
    """A statement of the program written another way."""

    title: str  # what it uses: "softmax"
    first: int  # lines that are replaced
    last: int
    text: str  # what stands there instead, without the indentation of the first line
    old: str  # the expression that was found, as the program computes it
    new: str  # the expression that takes its place
    lines: frozenset[int]  # of everything that the old expression was made of


def rewritings(text: str, line: int, rules: Sequence[Rule] = CATALOGUE) -> list[Rewriting]:
    """What the statements that compute with a line's expressions can be written as, the largest
    first.

    text: of the file or cell. line: of the operation that failed. Names are followed to their one
    assignment inside the function. Nothing is moved or repeated that draws random numbers, runs a
    module or has side effects.
    """
    scope = Scope.around(text, line)
    if scope is None:
        return []
    found: dict[tuple[int, str], Rewriting] = {}
    for statement in scope.statements():
        for made in _of_statement(scope, statement, rules):
            if line in made.lines:
                found.setdefault((made.first, made.text), made)
    return sorted(found.values(), key=lambda r: (-len(r.old), r.first))


@dataclass(frozen=True)
class _Place:
    """An expression and what it is rewritten as."""

    node: ast.expr
    title: str
    text: str
    lines: frozenset[int]


def _of_statement(scope: Scope, statement: ast.stmt, rules: Sequence[Rule]) -> Iterator[Rewriting]:
    """The statement with one expression of it rewritten, and with all of them."""
    places = []
    for node in scope.expressions(statement):
        made = _place(scope, statement, node, rules)
        if made is not None:
            places.append(made)
    apart: list[_Place] = []
    for place in places:  # the outermost first
        if not any(place.node in ast.walk(other.node) for other in apart):
            apart.append(place)
    if len(apart) > 1:
        yield _rewriting(scope, statement, apart)
    for place in places:
        yield _rewriting(scope, statement, [place])


def _rewriting(scope: Scope, statement: ast.stmt, places: list[_Place]) -> Rewriting:
    return Rewriting(
        ", ".join(dict.fromkeys(p.title for p in places)),
        statement.lineno,
        statement.end_lineno or statement.lineno,
        scope.replaced(statement, [(p.node, p.text) for p in places]),
        ", ".join(ast.unparse(p.node) for p in places),
        ", ".join(p.text for p in places),
        frozenset().union(*(p.lines for p in places)),
    )


def _place(
    scope: Scope, statement: ast.stmt, node: ast.expr, rules: Sequence[Rule]
) -> _Place | None:
    """An expression as it can be rewritten; None where no rule knows it, or only a part of it."""
    reading = scope.reading(statement)
    written_to, node_read = _without_out(node)
    old = term_of(node_read, reading.resolve)
    new, titles = rewritten(old, rules)
    if not titles or new == old:
        return None
    spelled = reading.spelled(new)
    if spelled is None:
        return None
    if written_to:
        spelled = f"{written_to}.copy_({spelled})"
    lines = reading.lines | set(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    return _Place(node, titles[-1], spelled, frozenset(lines))


def _without_out(node: ast.expr) -> tuple[str, ast.expr]:
    """Where a call writes its result, if it says so, and the call without that."""
    if not isinstance(node, ast.Call):
        return "", node
    target = next((k.value for k in node.keywords if k.arg == "out"), None)
    if not isinstance(target, ast.Name | ast.Attribute):
        return "", node
    rest = [k for k in node.keywords if k.arg != "out"]
    return ast.unparse(target), ast.copy_location(ast.Call(node.func, node.args, rest), node)


def rewritten(t: Term, rules: Sequence[Rule] = CATALOGUE) -> tuple[Term, list[str]]:
    """The term by the rules, and the titles of those used on the whole of it; none: it has no
    better form."""
    titles: list[str] = []
    t = _repeated(t, [r for r in rules if not r.late], titles)
    if t.parts and t.kind != "hole":
        inner = t.parts if t.kind != "index" else t.parts[:1]
        parts = tuple(rewritten(p, rules)[0] for p in inner) + t.parts[len(inner) :]
        t = _with_parts(t, parts)
    return _repeated(t, rules, titles), titles


def _repeated(t: Term, rules: Sequence[Rule], titles: list[str]) -> Term:
    for _ in range(8):
        for rule, partly in [(rule, False) for rule in rules] + [(rule, True) for rule in rules]:
            if rule.root and titles:
                continue
            made = applied(rule, t, partly)
            if made is not None and made != t:
                titles.append(rule.title)
                t = made
                break
        else:
            return t
    return t


def _with_parts(t: Term, parts: tuple[Term, ...]) -> Term:
    if parts == t.parts:
        return t
    match t.kind:
        case "sum":
            return summed([(int(m), p) for m, p in zip(t.marks, parts, strict=True)])
        case "product":
            return multiplied([(int(m), p) for m, p in zip(t.marks, parts, strict=True)])
        case "power":
            return raised(parts[0], parts[1])
        case "call":
            return called(t.name, [(str(m), p) for m, p in zip(t.marks, parts, strict=True)])
    return Term(t.kind, t.name, parts, t.marks, t.value)


def applied(rule: Rule, t: Term, partly: bool = False) -> Term | None:
    """What the rule makes of a term, or of some of its summands or factors; None where it does not
    match."""
    p = rule.before
    if not partly:
        for bound in matches(p, t, {}):
            if rule.root and bound["_p"].value == int(bound["_p"].value):
                continue
            made = filled(rule.after, bound)
            if made is not None:
                return made
        return None
    for bound, kind, rest in _part(p, t):
        if rule.root and bound["_p"].value == int(bound["_p"].value):
            continue
        made = filled(rule.after, bound)
        if made is not None:
            return summed([*rest, (1, made)]) if kind == "sum" else multiplied([*rest, (1, made)])
    return None


def _part(p: Term, t: Term) -> Iterator[tuple[Binding, str, list[tuple[int, Term]]]]:
    """Matches of some summands or factors of the term, with what is left."""
    if p.kind not in ("sum", "product") or len(p.parts) < 2:
        return
    whole = t
    if p.kind == "product" and t.kind == "sum" and len(t.parts) == 1:  # minus a product
        whole = t.parts[0]
    if whole.kind != p.kind:
        return
    sign = [] if whole is t else [(1, number(Fraction(-1)))]
    for bound, rest in _some(p, whole, {}):
        if rest:
            yield bound, p.kind, [*rest, *sign]


def matches(p: Term, t: Term, bound: Binding) -> Iterator[Binding]:
    """Ways in which the term is an instance of the pattern."""
    if p.kind == "hole":
        if p.name.startswith("_"):
            value = _constant(t)
            if value is None:
                return
            t = number(value)
        have = bound.get(p.name)
        if have is None:
            yield {**bound, p.name: t}
        elif have == t:
            yield bound
        return
    if p.kind == "sum" and len(p.parts) == 1:  # minus a hole: every term is minus another
        yield from matches(p.parts[0], negated(t), bound)
        return
    if p.kind != t.kind:
        return
    if p.kind == "number":
        if p.value == t.value:
            yield bound
    elif p.kind == "leaf":
        if p.name == t.name:
            yield bound
    elif p.kind in ("sum", "product"):
        for found, rest in _some(p, t, bound):
            if not rest:
                yield found
    elif p.kind == "call":
        if p.name == t.name and p.marks == t.marks:
            yield from _all(p.parts, t.parts, bound)
    elif len(p.parts) == len(t.parts):
        yield from _all(p.parts, t.parts, bound)


def _constant(t: Term) -> Fraction | float | None:
    """The value of a number, 1 / 3 among them; None of anything else."""
    if t.kind == "number":
        return t.value
    if t.kind == "product" and t.marks == (-1,) and t.parts[0].kind == "number":
        return 1 / t.parts[0].value
    return None


def _all(ps: Sequence[Term], ts: Sequence[Term], bound: Binding) -> Iterator[Binding]:
    if not ps:
        yield bound
        return
    for found in matches(ps[0], ts[0], bound):
        yield from _all(ps[1:], ts[1:], found)


def _some(p: Term, t: Term, bound: Binding) -> Iterator[tuple[Binding, list[tuple[int, Term]]]]:
    """Ways to find the pattern's summands or factors among the term's; with those left over."""
    wanted = sorted(
        zip(p.marks, p.parts, strict=True),
        key=lambda item: (item[1].kind == "hole", item[1].kind == "sum"),
    )
    items = [(int(m), part) for m, part in zip(t.marks, t.parts, strict=True)]
    yield from _assigned([(int(m), q) for m, q in wanted], items, bound, p.kind)


def _assigned(
    wanted: list[tuple[int, Term]], items: list[tuple[int, Term]], bound: Binding, kind: str
) -> Iterator[tuple[Binding, list[tuple[int, Term]]]]:
    if not wanted:
        yield bound, items
        return
    (mark, p), later = wanted[0], wanted[1:]
    have = bound.get(p.name) if p.kind == "hole" else None
    if have is not None and have.kind == kind:  # a hole that stands for several of them
        rest = list(items)
        for m, part in zip(have.marks, have.parts, strict=True):
            if (int(m) * mark, part) not in rest:
                return
            rest.remove((int(m) * mark, part))
        yield from _assigned(later, rest, bound, kind)
        return
    if (
        p.kind == "hole"
        and have is None
        and not later
        and len(items) > 1
        and not p.name.startswith("_")
    ):
        # the last hole takes all that is left: k * x in sin(k * x), w in w * exp(x)
        if kind == "sum":
            whole = summed([(m * mark, part) for m, part in items])
        else:
            whole = multiplied([(m * mark, part) for m, part in items])
        yield {**bound, p.name: whole}, []
    for i, (m, part) in enumerate(items):
        rest = items[:i] + items[i + 1 :]
        if m == mark:
            for found in matches(p, part, bound):
                yield from _assigned(later, rest, found, kind)
        elif kind == "product" and p.kind == "hole" and p.name[0] == "_" and part.kind == "number":
            # a half is a divisor of 2
            for found in matches(p, number(1 / part.value), bound):
                yield from _assigned(later, rest, found, kind)


def filled(p: Term, bound: Binding) -> Term | None:
    """The replacement with what the holes stand for."""
    if p.kind == "hole":
        return bound.get(p.name)
    if not p.parts:
        return p
    parts = [filled(q, bound) for q in p.parts]
    if any(q is None for q in parts):
        return None
    have = tuple(q for q in parts if q is not None)
    if p.name in ("math_log", "log") and have[0].kind == "number":
        value = have[0].value
        return number(math.log(value)) if value > 0 else None
    if p.name == "powers":
        return _powers(have[0], have[1].value)
    return _with_parts(p, have)


def _powers(x: Term, count: Fraction | float) -> Term | None:
    """1 + x + ... + x**(count - 1), by Horner's rule."""
    if count != int(count) or not 2 <= count <= MOST_POWERS:
        return None
    total = number(Fraction(1))
    for _ in range(int(count) - 1):
        total = summed([(1, number(Fraction(1))), (1, multiplied([(1, x), (1, total)]))])
    return total
