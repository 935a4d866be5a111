"""Loops whose products leave the range, written in logarithms of what they carry from round to
round."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from nanlab.fixes.logarithms import NOTHING, is_zeros, log_of, products_summed
from nanlab.fixes.match import Reading, Scope, bound, rewritten
from nanlab.fixes.term import Term, calls_in, multiplied, summed, taken_of, term_of
from nanlab.operators import having
from nanlab.program.expression import names_in, replaced, span_of

Lines = tuple[int, int, str]


def in_logarithms(text: str, line: int) -> Iterator[list[Lines]]:
    """All statements of a function to change together, each with its lines, so that a loop carries
    logarithms. The loop multiplies and divides what it carries: a name, or the last item of a
    list."""
    yield from _by_names(text, line)
    scope = Scope.around(text, line)
    for name in _grown(scope) if scope is not None else ():
        assert scope is not None
        ends = {s.lineno: span_of(s)[2] for s in scope.order}
        for lines in _by_names(_as_name(scope, name), line):
            yield [(row, ends[row], _as_list(scope, name, row, new)) for row, _, new in lines]


def _grown(scope: Scope) -> Iterator[str]:
    """Lists that begin with one item, are appended to, and of which only the last item is read."""
    for name in sorted({_target(s) for s in scope.order} - {""}):
        nodes = {id(n): n for s in scope.order for n in ast.walk(s)}.values()
        reads = [n for n in nodes if isinstance(n, ast.Name) and n.id == name]
        items = [s for s in scope.order if _item(s, name) is not None]
        last = [n for n in nodes if _is_last(n, name)]
        if len(items) > 1 and len(reads) == len(items) + len(last):
            yield name


def _item(statement: ast.stmt, name: str) -> ast.expr | None:
    """The item with which a statement begins a list, or that it appends to the list."""
    match statement:
        case ast.Assign(targets=[ast.Name(id=given)], value=ast.List(elts=[item])) if given == name:
            return item
        case ast.Expr(
            value=ast.Call(func=ast.Attribute(value=ast.Name(id=given), attr="append"), args=[item])
        ) if given == name:
            return item
    return None


def _is_last(node: ast.AST, name: str) -> bool:
    return isinstance(node, ast.Subscript) and ast.unparse(node) == f"{name}[-1]"


def _as_name(scope: Scope, name: str) -> str:
    """The file with a list replaced by a name for its last item."""
    rows = scope.text.splitlines()

    def one(node: ast.AST) -> ast.expr | None:
        return ast.Name(name, ast.Load()) if _is_last(node, name) else None

    for statement in scope.order:
        item = _item(statement, name)
        lasts = [n for n in ast.walk(statement) if _is_last(n, name)]
        if item is None and (
            not lasts or not isinstance(getattr(statement, "value", None), ast.expr)
        ):
            continue
        if item is not None:
            new = f"{name} = {ast.unparse(replaced(item, one))}"
        else:
            new = scope.replaced(statement, [(n, name) for n in lasts if isinstance(n, ast.expr)])
        first, begin, last, _ = span_of(statement)
        made = [rows[first - 1][:begin] + new.split("\n")[0], *new.split("\n")[1:]]
        rows[first - 1 : last] = made + [""] * (last - first + 1 - len(made))
    return "\n".join(rows) + "\n"


def _as_list(scope: Scope, name: str, first: int, new: str) -> str:
    """New statements with the name replaced by the last item of the list again."""
    begins = any(_target(s) == name and s.lineno == first for s in scope.order)

    def last(node: ast.AST) -> ast.expr | None:
        return (
            ast.parse(f"{name}[-1]", mode="eval").body
            if isinstance(node, ast.Name) and node.id == name
            else None
        )

    found = []
    for statement in ast.parse(new).body:
        if _target(statement) == name and isinstance(statement, ast.Assign):
            value = ast.unparse(replaced(statement.value, last))
            found.append(f"{name} = [{value}]" if begins else f"{name}.append({value})")
        else:
            found.append(ast.unparse(replaced(statement, last)))
    return "\n".join(found)


def _by_names(text: str, line: int) -> Iterator[list[Lines]]:
    scope = Scope.around(text, line)
    found: list[list[Lines]] = []
    for loop in scope.order if scope is not None else ():
        if isinstance(loop, ast.For | ast.While):
            assert scope is not None
            inside = [s for s in scope.order if id(loop.body) in scope.blocks[id(s)]]
            before = scope.order[: scope.order.index(loop)]
            for name in sorted({_target(s) for s in before} & {_target(s) for s in inside} - {""}):
                carried = _made_of(name, inside)
                found += (_Loop(scope, inside, carried, vector).lines() for vector in (False, True))
    for i, lines in enumerate(found):
        if lines not in found[:i] and any(first <= line <= last for first, last, _ in lines):
            yield lines


def _made_of(name: str, statements: Sequence[ast.stmt]) -> frozenset[str]:
    """Names that depend on a name, and on which it depends, where the statements are repeated."""
    reads: dict[str, set[str]] = {}
    for s in statements:
        if target := _target(s):
            reads.setdefault(target, set()).update(names_in(s))

    def behind(one: str) -> set[str]:
        found, more = set[str](), {one}
        while more:
            found |= more
            more = set().union(*(reads.get(n, set()) for n in more)) - found
        return found

    return frozenset(n for n in behind(name) & reads.keys() if name in behind(n))


@dataclass
class _Loop:
    """A loop, the names that it carries, and whether a matrix is multiplied with a vector."""

    scope: Scope
    inside: Sequence[ast.stmt]
    carried: frozenset[str]
    vector: bool

    def lines(self) -> list[Lines]:
        """All statements in their new form; empty where one of them has none."""
        found: list[Lines] = []
        for statement in self.scope.order:
            if not self._may_run_with(statement):
                continue
            value = self.scope.joined.get(id(statement)) or getattr(statement, "value", None)
            heads = [h for h in (getattr(statement, n, None) for n in ("test", "iter")) if h]
            if names_in(*heads) & self.carried:  # a decision by what is another number now
                return []
            if bound(statement) & self.carried:
                target = _written(statement)
                new = self._logarithm(statement, value) if target and value else None
                if new is None:
                    return []
                text = f"{target} = {new}"
            elif not isinstance(value, ast.expr):
                continue
            elif (read := self._read(statement, value)) is not None:
                text = self.scope.replaced(statement, [(value, read)])
            else:
                continue
            if ast.unparse(ast.parse(text)) != ast.unparse(statement):
                first, _, last, _ = span_of(statement)
                found.append((first, last, text))
        return found

    def _may_run_with(self, statement: ast.stmt) -> bool:
        """Whether a statement stands around the loop or in it, and not in another branch."""
        mine, loop = self.scope.blocks[id(statement)], self.scope.blocks[id(self.inside[0])]
        shared = min(len(mine), len(loop))
        return mine[:shared] == loop[:shared]

    def _term(self, statement: ast.stmt, value: ast.expr) -> tuple[Term, Reading]:
        reading = _Carrying(self.scope, statement, carried=self.carried)
        made = term_of(value, reading.resolve)
        return products_summed(made, self.vector, lambda t: _holds(t, self.carried)), reading

    def _logarithm(self, statement: ast.stmt, value: ast.expr) -> str | None:
        """The text of the logarithm of the value that a statement assigns."""
        t, reading = self._term(statement, value)
        inner = log_of(t) if not self._hides(t) else None
        text = reading.spelled(rewritten(inner)[0]) if inner is not None else None
        if statement in self.inside:
            parts, takes_off = (t.parts, -1 in t.marks) if t.kind == "sum" else ((), False)
            known = all(_holds(p, self.carried) or log_of(p) for p in parts)
            if text is None or takes_off or not known:
                return None
            return ast.unparse(replaced(ast.parse(text, mode="eval"), self._of_tensors))
        if t.kind != "number" and names_in(value) & self.carried:
            return text
        return text or _log_text(value)

    def _read(self, statement: ast.stmt, value: ast.expr) -> str | None:
        """The text of an expression that reads a carried name, which holds a logarithm now. None
        where it reads none, and nothing in it leaves the range."""
        t, reading = self._term(statement, value)
        if names_in(value) & self.carried:
            made = replaced(value, lambda n: _exp_text(n) if self._is_carried(n) else None)
            inner = log_of(t) if t.kind != "sum" else None
            new = rewritten(t)[0] if inner is None else taken_of("exp", rewritten(inner)[0])
            ways = () if self._hides(t) else (new, _joined(t))
            texts = (reading.spelled(way) for way in ways)
            return next((text for text in texts if text), None) or ast.unparse(made)
        takes_log = not having("log").isdisjoint(calls_in(t))
        return reading.spelled(rewritten(t)[0]) if takes_log and _holds(t, self.carried) else None

    def _of_tensors(self, node: ast.AST) -> ast.expr | None:
        """``logaddexp`` with a tensor in place of a number, which it does not take."""
        numbers = self.carried & {_target(s) for s in self.scope.order if _is_number(s)}
        match node:
            case ast.Call(func=ast.Attribute(attr="logaddexp"), args=args):
                if any(isinstance(a, ast.Name) and a.id in numbers for a in args):
                    made = [_as_tensor(a) if ast.unparse(a) in numbers else a for a in args]
                    return ast.Call(node.func, made, [])
        return None

    def _hides(self, t: Term) -> bool:
        """Whether an unknown part reads what the loop carries."""
        if t.kind == "leaf" and t.name not in self.carried and t.node is not None:
            return bool(names_in(t.node) & self.carried)
        return any(map(self._hides, t.parts))

    def _is_carried(self, node: ast.AST) -> bool:
        return isinstance(node, ast.Name) and node.id in self.carried


@dataclass
class _Carrying(Reading):
    """Names of a loop, of which the carried ones stand for exponentials of themselves."""

    carried: frozenset[str] = frozenset()

    def _resolve(self, name: ast.expr, at: ast.stmt, lookups: int) -> Term | None:
        if isinstance(name, ast.Name) and name.id in self.carried:
            return taken_of("exp", Term("leaf", name.id, node=name))
        return super()._resolve(name, at, lookups)


def _holds(t: Term, names: frozenset[str]) -> bool:
    return (t.kind == "leaf" and t.name in names) or any(_holds(p, names) for p in t.parts)


def _target(statement: ast.stmt) -> str:
    match statement:
        case ast.Assign(targets=[ast.Name(id=name)]) | ast.AugAssign(target=ast.Name(id=name)):
            return name
    return ""


def _is_number(statement: ast.stmt) -> bool:
    return isinstance(statement, ast.Assign) and isinstance(statement.value, ast.Constant)


def _written(statement: ast.stmt) -> str:
    """The name that a statement assigns, or the part of a tensor, as ``x[0]``."""
    match statement:
        case ast.Assign(targets=[ast.Subscript(value=ast.Name()) as part]):
            return ast.unparse(part)
    return _target(statement)


def _joined(t: Term) -> Term:
    """The term, exponentials that it multiplies as one: of a large and a tiny one."""
    t = replace(t, parts=tuple(map(_joined, t.parts)))
    parts = list(zip(t.marks, t.parts, strict=True)) if t.kind == "product" else []
    powers = [(int(mark), p.parts[0]) for mark, p in parts if p.kind == "call" and p.name == "exp"]
    if len(powers) < 2:
        return t
    rest = [(int(mark), p) for mark, p in parts if p.kind != "call" or p.name != "exp"]
    return multiplied([(1, taken_of("exp", summed(powers))), *rest])


def _exp_text(node: ast.AST) -> ast.expr:
    return ast.parse(f"torch.exp({ast.unparse(node)})", mode="eval").body


def _as_tensor(node: ast.expr) -> ast.expr:
    return ast.parse(f"torch.as_tensor({ast.unparse(node)})", mode="eval").body


def _log_text(value: ast.expr) -> str:
    """The logarithm of where a loop begins: of ones, zeros."""
    text = ast.unparse(value)
    if text in ("1", "1.0"):
        return "0.0"
    if text in ("0", "0.0"):
        return f"{NOTHING:g}"
    if isinstance(value, ast.Call) and text.startswith(("torch.ones(", "torch.ones_like(")):
        return text.replace("torch.ones", "torch.zeros", 1)
    if is_zeros(text):
        return f"{text} - {-NOTHING:g}"
    return f"torch.log({text})"
