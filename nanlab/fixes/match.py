"""The function around a line: its statements, what names stand for, what fits where."""

from __future__ import annotations

import ast
import math
import re
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from functools import lru_cache
from keyword import kwlist
from typing import Any, TypeGuard, cast

from nanlab.fixes.catalogue import CATALOGUE, Rule
from nanlab.fixes.logarithms import as_exponential, log_of, products_summed
from nanlab.fixes.term import (
    Term,
    calls_in,
    gathered,
    is_pure,
    multiplied,
    negated,
    number,
    raised,
    summed,
    taken_of,
    term_of,
    text_of,
)
from nanlab.operators import having
from nanlab.program.edit_text import kept_for_backward
from nanlab.program.expression import (
    assigned_pairs,
    copied,
    last_name,
    lines_of,
    names_in,
    nodes_of,
    parsed,
    span_of,
)

_SIMPLE = (ast.Assign, ast.AugAssign, ast.AnnAssign, ast.Return, ast.Expr)
Function = ast.FunctionDef | ast.AsyncFunctionDef
MOST_LOOKUPS = 12
MOST_SCOPES = 4  # a function and those that call it


class _Unspellable(Exception):
    """A term that cannot be written at the statement."""


@dataclass
class Scope:
    """A function, or the file itself outside of any."""

    text: str
    body: list[ast.stmt]
    parameters: frozenset[str]
    order: list[ast.stmt] = field(default_factory=list)  # simple statements, as they stand
    blocks: dict[int, tuple[int, ...]] = field(default_factory=dict)  # statement -> blocks it is in
    owners: dict[int, ast.stmt] = field(default_factory=dict)  # expression -> statement
    # a statement that writes into a name, ``x += 1`` or ``x.add_(1)`` -> what it computes
    joined: dict[int, ast.expr] = field(default_factory=dict)
    # what names that it does not assign itself stand for: parameters, as one writes them
    given: dict[str, Term] = field(default_factory=dict)
    # functions of the file, those of the class around first, by the names that calls have
    functions: dict[str, Function] = field(default_factory=dict)
    classes: dict[str, ast.ClassDef] = field(default_factory=dict)  # of the file
    calls_it: bool = False  # the function that computes, which is another
    # by the identity of an expression, and whether names are kept: what it is
    _terms: dict[tuple[int, bool], tuple[Term, Reading]] = field(default_factory=dict)

    @classmethod
    def around(cls, text: str, line: int) -> Scope | None:
        """The innermost function that holds the line; None where the text is no Python."""
        return next(iter(cls.behind(text, line, 1)), None)

    @classmethod
    @lru_cache(maxsize=64)
    def behind(cls, text: str, line: int, most: int = MOST_SCOPES) -> tuple[Scope, ...]:
        """The innermost function that holds the line, and those of the file that call it."""
        try:
            return cls.within_code(text, parsed(text), line, most)
        except SyntaxError:
            return ()

    @classmethod
    def within_code(cls, text: str, tree: ast.Module, line: int, most: int) -> tuple[Scope, ...]:
        """The scopes around a line in parsed code, which may be changed."""
        nodes = nodes_of(tree) if tree is parsed(text) else (*ast.walk(tree),)
        functions = [n for n in nodes if isinstance(n, Function)]
        holding = [n for n in functions if line in lines_of(n)]
        chain = [max(holding, key=lambda n: n.lineno, default=None)]
        for callee in chain:
            name = callee.name if callee is not None else ""
            if not name or len(chain) >= most:
                continue
            called = (n for n in nodes if isinstance(n, ast.Call) and last_name(n.func) == name)
            calls = [n.lineno for n in called]
            for each in functions:
                if each not in chain and any(c in lines_of(each) for c in calls):
                    chain.append(each)
        own, *callers = chain[:most]
        return cls._of(text, nodes, own, line), *(cls._of(text, nodes, n) for n in callers)

    @classmethod
    def _of(
        cls, text: str, nodes: Sequence[ast.AST], function: Function | None, line: int = 0
    ) -> Scope:
        """The scope of a function. line: one that the function holds; none for one that calls
        it."""
        tree = cast(ast.Module, nodes[0])
        if function is None:
            made = cls(text, tree.body, frozenset())
        else:
            a = function.args
            given = [*a.posonlyargs, *a.args, *a.kwonlyargs, *filter(None, (a.vararg, a.kwarg))]
            made = cls(text, function.body, frozenset(x.arg for x in given))
        made._read(made.body, ())
        made.functions = _functions(nodes, line or made.body[0].lineno)
        made.classes = {s.name: s for s in tree.body if isinstance(s, ast.ClassDef)}
        made.calls_it = not line
        if function is not None and function.name == "backward":
            made.given = _saved(made, function)
        return made

    def within(self, function: Function, given: dict[str, Term]) -> Scope:
        """The scope of another function of the file, given terms for its parameters."""
        made = Scope(self.text, function.body, frozenset(given), functions=self.functions)
        made.classes = self.classes
        made.given = given
        made._read(made.body, ())
        return made

    def _read(
        self, body: list[ast.stmt], blocks: tuple[int, ...], within: list[ast.stmt] | None = None
    ) -> None:
        inside = (*blocks, id(body if within is None else within))
        for statement in body:
            self.blocks[id(statement)] = inside
            if isinstance(statement, _SIMPLE):
                self.order.append(statement)
                for node in ast.walk(statement):
                    self.owners[id(node)] = statement
                if isinstance(statement, ast.AugAssign) and isinstance(statement.target, ast.Name):
                    self._join(statement, statement.target.id)
                elif isinstance(statement, ast.Expr) and written_by(statement.value) is not None:
                    self._join_chain(statement)
            elif not isinstance(statement, Function | ast.ClassDef):
                self.order.append(statement)
                if isinstance(statement, ast.With | ast.AsyncWith):  # its body always runs
                    self._read(statement.body, blocks, body)
                    continue
                for name in ("body", "orelse", "finalbody"):
                    self._read(getattr(statement, name, []), inside)
                for part in (*getattr(statement, "handlers", []), *getattr(statement, "cases", [])):
                    self._read(part.body, inside)

    def _join(self, statement: ast.AugAssign, name: str) -> None:
        read = ast.copy_location(ast.Name(name, ast.Load()), statement.target)
        made = ast.BinOp(read, statement.op, statement.value)
        ast.copy_location(made, statement)
        self.joined[id(statement)] = made
        for node in (read, made):
            self.owners[id(node)] = statement

    def _join_chain(self, statement: ast.Expr) -> None:
        made = copied(statement.value)
        link: ast.expr = made
        while isinstance(link, ast.Call) and isinstance(link.func, ast.Attribute):
            link.func.attr = link.func.attr.removesuffix("_")
            link = link.func.value
        self.joined[id(statement)] = made
        for node in ast.walk(made):
            self.owners[id(node)] = statement

    def statements(self) -> Iterator[ast.stmt]:
        """The statements that compute something."""
        for s in self.order:
            if isinstance(s, _SIMPLE) and isinstance(s.value, ast.expr):
                yield s

    def reached_by(self, line: int) -> Iterator[ast.stmt]:
        """The statements that compute from the results of a line, as far as names tell."""
        named = [(name.rpartition(".")[2], f) for name, f in self.functions.items()]
        defined = [*named, *self.classes.items()]
        names = {name for name, d in defined if line in lines_of(d)}
        while more := {n for n, d in defined if n not in names and names & _identifiers(d)}:
            names |= more
        for s in self.order:
            inside = isinstance(s, _SIMPLE) and line in lines_of(s)
            if inside or names & _identifiers(s):
                names |= {bound.rpartition(".")[2] for bound in bound(s)}
                if isinstance(s, _SIMPLE) and isinstance(s.value, ast.expr):
                    yield s

    def expressions(self, statement: ast.stmt) -> Iterator[ast.expr]:
        """The computing expressions of a statement, the outermost first."""
        whole = self.joined.get(id(statement))
        if whole is not None and self._is_fresh(statement):
            yield whole
        for node in ast.walk(statement.value):  # type: ignore[attr-defined]
            if isinstance(node, ast.BinOp | ast.Call | ast.UnaryOp):
                # what a function gives is written anew in the function
                own = isinstance(node, ast.Call) and dotted(node.func) in self.functions
                if not self._gives_names(node) and not (own and self.calls_it):
                    yield node

    def own_calls(self, statement: ast.stmt) -> Iterator[ast.Call]:
        """The calls of functions of the file in a statement, the outermost first."""
        for node in ast.walk(statement):
            if isinstance(node, ast.Call) and dotted(node.func) in self.functions:
                yield node

    def _is_fresh(self, statement: ast.stmt) -> bool:
        """Whether an augmented assignment writes a tensor that nothing else shows."""
        made = self.assignment(_written_name(statement), statement)
        if made is None or not isinstance(made[1], ast.BinOp | ast.Call) or not is_pure(made[1]):
            return False
        return isinstance(statement, ast.AugAssign) or is_new(made[1])

    def _gives_names(self, node: ast.expr) -> bool:
        """Whether an expression assigns a name that is read outside of it."""
        names = {n.target.id for n in ast.walk(node) if isinstance(n, ast.NamedExpr)}
        if not names:
            return False
        own = {id(n) for n in ast.walk(node)}
        return any(
            isinstance(n, ast.Name) and n.id in names and id(n) not in own
            for statement in self.body
            for n in ast.walk(statement)
        )

    def term(
        self, statement: ast.stmt, node: ast.expr, keeps_names: bool = False
    ) -> tuple[Term, Reading]:
        """What an expression of a statement is, read once, and what its names stand for."""
        key = id(node), keeps_names
        if key not in self._terms:
            reading = Reading(self, statement, keeps_names=keeps_names)
            self._terms[key] = term_of(_without_out(node)[1], reading.resolve), reading
        return self._terms[key]

    def assignment(self, name: str, before: ast.stmt) -> tuple[ast.stmt, ast.expr] | None:
        """The surely last assignment of a name before another statement, and the value."""
        found = [s for s in self.order if name in bound(s)]
        earlier = [s for s in found if _start(s) < _start(before)]
        value = self._value_of(earlier[-1], name) if earlier else None
        if value is None:
            return None
        made = earlier[-1]
        mine, theirs = self.blocks[id(made)], self.blocks[id(before)]
        if theirs[: len(mine)] != mine:
            return None
        # in a block of its own, a loop perhaps, it or one that comes later may have run before
        later = [
            s
            for s in found
            if _start(s) >= _start(before) and self.blocks[id(s)][: len(theirs)] == theirs
        ]
        return None if later and mine != theirs else (made, value)

    def _value_of(self, statement: ast.stmt, name: str) -> ast.expr | None:
        """The expression that a statement assigns to a name; None where it is no plain one."""
        if id(statement) in self.joined:
            return self.joined[id(statement)]
        if not isinstance(statement, ast.Assign) or len(statement.targets) != 1:
            return None
        match statement.targets[0], statement.value:
            case ast.Name(), value:
                return value
            case ast.Tuple(elts=names), ast.Tuple(elts=values) if len(names) == len(values):
                if all(isinstance(n, ast.Name) for n in names):
                    return next(
                        v
                        for n, v in zip(names, values, strict=True)
                        if n.id == name  # type: ignore[attr-defined]
                    )
            case ast.Tuple(elts=names), value if _is_shape(value):
                at = next(
                    (i for i, n in enumerate(names) if isinstance(n, ast.Name) and n.id == name), 0
                )
                taken = ast.Subscript(value, ast.Constant(at), ast.Load())
                return ast.fix_missing_locations(ast.copy_location(taken, value))
        return None

    def unchanged(
        self, node: ast.AST, since: ast.stmt, until: ast.stmt, after: bool = False
    ) -> bool:
        """Whether an expression has the same value at two statements; after: behind the first and
        at the second."""
        if since is until:
            return True
        read = names_in(node)
        read |= {
            ast.unparse(n) for n in ast.walk(node) if isinstance(n, ast.Attribute | ast.Subscript)
        }
        between = self.order[self.order.index(since) + after : self.order.index(until)]
        return not any(bound(s) & read or _written_in_place(s) & read for s in between)

    def in_place(self, statement: ast.stmt, new: str) -> str:
        """The statement's lines with another in its place: what else stands on them stays."""
        rows, (first, begin, last, end) = self.text.splitlines(), span_of(statement)
        head = rows[first - 1].encode()[:begin].decode().lstrip()
        tail = rows[last - 1].encode()[end:].decode().strip()
        return f"{head}{new}{tail if tail.startswith(';') else ''}"

    def replaced(self, statement: ast.stmt, changes: list[tuple[ast.expr, str]]) -> str:
        """The statement's lines with expressions replaced, without their indentation."""
        first, _, last, _ = span_of(statement)
        for node, new in changes:
            if node is self.joined.get(id(statement)):
                return self.in_place(statement, f"{_written_name(statement)} = {new}")
        part = [row.encode() for row in self.text.splitlines()[first - 1 : last]]
        for node, new in sorted(changes, key=lambda c: span_of(c[0])[:2], reverse=True):
            start, begin, end, stop = span_of(node)
            start, end = start - first, end - first
            head, tail = part[start][:begin], part[end][stop:]
            whole = node is getattr(statement, "value", None)
            kinds = ast.Call | ast.Name | ast.Attribute | ast.Subscript
            atomic = isinstance(ast.parse(new, mode="eval").body, kinds)
            before, after = head.rstrip()[-1:], tail.lstrip()[:1]
            bare = before in (b"(", b"[", b",") and after in (b")", b"]", b",")
            if atomic and after == b")" and _GROUPS.search(head):
                head, tail = head.rstrip()[:-1], tail.lstrip()[1:]
            text = new if whole or atomic or bare else f"({new})"
            part[start : end + 1] = [head + text.encode() + tail]
        return _aligned("\n".join(row.decode() for row in part))


# a parenthesis around an expression, none of a call
_GROUPS = re.compile(
    rb"(?:[^\w\s)\]}'\"]\s*|(?<!\w)(?:%s)\s+|^\s*)\(\s*$" % "|".join(kwlist).encode()
)


@lru_cache(4096)
def _identifiers(node: ast.AST) -> frozenset[str]:
    """The names and attributes in a piece of code; of a loop or an ``if``, those in its head."""
    inside = [node]
    if isinstance(node, ast.For | ast.AsyncFor):
        inside = [node.iter]
    elif isinstance(node, ast.If | ast.While):
        inside = [node.test]
    found = (n for each in inside for n in ast.walk(each))
    return frozenset(last_name(n) for n in found if isinstance(n, ast.Name | ast.Attribute))


def _saved(scope: Scope, backward: Function) -> dict[str, Term]:
    """Terms of the tensors that a custom Function's forward computed and saved, by their names in
    its backward: in terms of the arguments that it saved too, under their names there."""
    owners = (c for c in scope.classes.values() if backward in c.body)
    for function, kept in filter(None, (kept_for_backward(c, backward) for c in owners)):
        own = {a.arg for a in function.args.args}
        pairs = [(s, ast.unparse(t)) for t, s in kept]
        known = {
            s.id: Term("leaf", name) for s, name in pairs if isinstance(s, ast.Name) and s.id in own
        }
        inside = scope.within(function, known)
        reading = Reading(inside, inside.order[-1])
        made = {name: term_of(s, reading.resolve) for s, name in pairs}
        return {
            name: t
            for name, t in made.items()
            if t.parts and all(x.kind == "number" or x in known.values() for x in leaves_of(t))
        }
    return {}


def _is_called(function: Function) -> bool:
    """Whether a function of a file is run by a call, and is no property."""
    return all(ast.unparse(d) in ("staticmethod", "classmethod") for d in function.decorator_list)


def _is_named(statement: ast.stmt, name: str) -> TypeGuard[Function]:
    return isinstance(statement, Function) and statement.name == name


def _with_fields(owner: ast.ClassDef) -> ast.FunctionDef:
    """The ``__init__`` that a dataclass generates."""
    names = [ast.unparse(s.target) for s in owner.body if isinstance(s, ast.AnnAssign)]
    text = "".join(f"\n    self.{n} = {n}" for n in names) or "\n    pass"
    made = ast.parse(f"def __init__({', '.join(['self', *names])}):{text}").body[0]
    assert isinstance(made, ast.FunctionDef)
    return made


def _given_to_attributes(function: Function) -> Iterator[tuple[ast.expr, ast.expr]]:
    """(self.x, value) of each assignment in a function, such as ``self.x = value``."""
    for s in function.body:
        if isinstance(s, ast.Assign) and len(s.targets) == 1:
            yield from assigned_pairs(s)


def dotted(node: ast.expr) -> str:
    """The text of a name or of an attribute of one, as ``self.f``; "" for others."""
    if isinstance(node, ast.Attribute):
        owner = dotted(node.value)
        return owner and f"{owner}.{node.attr}"
    return node.id if isinstance(node, ast.Name) else ""


def _is_shape(value: ast.expr) -> bool:
    """Whether an expression is ``x.shape`` or ``x.size()``."""
    if isinstance(value, ast.Call):
        return last_name(value.func) == "size" and not value.args
    return isinstance(value, ast.Attribute) and value.attr == "shape"


def _start(statement: ast.stmt) -> tuple[int, int]:
    return statement.lineno, statement.col_offset


def _functions(nodes: Sequence[ast.AST], line: int) -> dict[str, Function]:
    """Functions of the file by the names in calls; those in the same function as the line, and
    ``self.f`` of its class."""
    tree = cast(ast.Module, nodes[0])
    found = {s.name: s for s in tree.body if isinstance(s, Function)}
    for s in nodes:
        match s:
            case ast.Assign(targets=[ast.Name(id=name)], value=ast.Lambda(args=args, body=value)):
                given = ast.copy_location(ast.Return(value), value)
                made = ast.FunctionDef(name=name, args=args, body=[given], decorator_list=[])
                found.setdefault(name, ast.copy_location(made, value))
    for owner in nodes:
        if isinstance(owner, ast.ClassDef | Function) and line in lines_of(owner):
            of = "self." if isinstance(owner, ast.ClassDef) else ""
            found |= {of + s.name: s for s in owner.body if isinstance(s, Function)}
    return found


def written_by(node: ast.AST) -> ast.Name | None:
    """The name that a chain like ``x.sub_(1).div_(y)`` writes into; None of others."""
    links = 0
    while isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        name = node.func.attr
        if not name.endswith("_") or name.endswith("__"):
            return None
        node, links = node.func.value, links + 1
    return node if links and isinstance(node, ast.Name) else None


def is_new(node: ast.expr) -> bool:
    """Whether an expression surely makes a new tensor: it is no name, no part and no view."""
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        name = node.func.attr
        return name not in having("moves") or name == "clone"
    return isinstance(node, ast.BinOp | ast.UnaryOp | ast.Call)


def _written_name(statement: ast.stmt) -> str:
    """The name that a joined statement writes into."""
    if isinstance(statement, ast.Expr):
        root = written_by(statement.value)
        return root.id if root is not None else ""
    return statement.target.id  # type: ignore[attr-defined, no-any-return]


def _aligned(text: str) -> str:
    """The text with its first line's indentation taken off every line."""
    rows = text.split("\n")
    indent = len(rows[0]) - len(rows[0].lstrip())
    return "\n".join(row[indent:] if not row[:indent].strip() else row for row in rows)


@lru_cache(4096)
def bound(s: ast.stmt) -> frozenset[str]:
    """Names and attributes that a statement gives another value."""
    found: set[str] = set()
    targets: list[ast.AST] = []
    match s:
        case ast.Assign():
            targets = list(s.targets)
        case ast.AugAssign() | ast.AnnAssign() | ast.For() | ast.AsyncFor():
            targets = [s.target]
        case ast.Expr() if (root := written_by(s.value)) is not None:
            return frozenset({root.id})
        case ast.With() | ast.AsyncWith():
            targets = [i.optional_vars for i in s.items if i.optional_vars]
        case ast.Delete():
            targets = list(s.targets)
        case ast.Import() | ast.ImportFrom():
            return frozenset((a.asname or a.name).split(".")[0] for a in s.names)
        case ast.Global() | ast.Nonlocal():
            return frozenset(s.names)
        case ast.Match():
            kinds = ast.MatchAs | ast.MatchStar
            return frozenset(n.name for n in ast.walk(s) if isinstance(n, kinds) and n.name)
    for target in targets:
        for node in ast.walk(target):
            if isinstance(node, ast.Name | ast.Attribute) and not isinstance(node.ctx, ast.Load):
                found.add(ast.unparse(node))
            if isinstance(node, ast.Subscript) and not isinstance(node.ctx, ast.Load):
                found.add(ast.unparse(node.value))
    if isinstance(s, _SIMPLE) and s.value is not None:
        found |= {n.target.id for n in ast.walk(s.value) if isinstance(n, ast.NamedExpr)}
    return frozenset(found)


@lru_cache(4096)
def _written_in_place(s: ast.stmt) -> frozenset[str]:
    """What a statement changes by a method such as ``add_``."""
    found: set[str] = set()
    for node in ast.walk(s) if isinstance(s, _SIMPLE) else ():
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            name = node.func.attr
            if name.endswith("_") and not name.endswith("__"):
                found |= {
                    ast.unparse(n)
                    for n in ast.walk(node.func.value)
                    if isinstance(n, ast.Name | ast.Attribute)
                }
            if name == "step":
                found.add(ast.unparse(node.func.value))
    return frozenset(found)


def _assigned_before(name: ast.Name, statement: ast.stmt) -> ast.expr | None:
    """The value of a name that an expression earlier in its own statement assigns."""
    found = [
        n.value
        for n in _assigned_inside(statement)
        if n.target.id == name.id
        and (n.end_lineno, n.end_col_offset) <= (name.lineno, name.col_offset)
    ]
    return found[0] if len(found) == 1 else None


@lru_cache(4096)
def _assigned_inside(statement: ast.stmt) -> tuple[ast.NamedExpr, ...]:
    """The assignments in a statement's expression."""
    if not isinstance(statement, _SIMPLE) or statement.value is None:
        return ()
    return tuple(n for n in ast.walk(statement.value) if isinstance(n, ast.NamedExpr))


@dataclass
class Reading:
    """The names of one statement, followed to what they were assigned."""

    scope: Scope
    statement: ast.stmt
    lines: set[int] = field(default_factory=set)  # of the assignments that were followed
    # a name stands for itself where what it was made of has another value by now
    keeps_names: bool = False
    kept: Collection[str] = ()  # names that are not followed
    named: list[Term] = field(default_factory=list)  # sums and products that names stand for

    def resolve(self, name: ast.expr) -> Term | None:
        """The term that a name stands for; None where it is not known."""
        return self._resolve(name, self.statement, MOST_LOOKUPS)

    def _resolve(self, name: ast.expr, at: ast.stmt, lookups: int) -> Term | None:
        if not lookups:
            return None
        if not isinstance(name, ast.Name):
            known = self.scope.given.get(dotted(name)) or self._returned(name, at, lookups)
            known = known or self._of_distribution(name, at, lookups)
            if known is None and isinstance(name, ast.Attribute):
                fields = self._object(name.value, at, lookups)
                known = fields[1].get(f"self.{name.attr}") if fields else None
            return known
        if name.id in self.kept:
            return None
        walrus = _assigned_before(name, at)
        if walrus is not None:
            return term_of(walrus, lambda inner: self._resolve(inner, at, lookups - 1))
        given = self.scope.assignment(name.id, at)
        if given is None:
            return self.scope.given.get(name.id)
        made, value = given
        found = term_of(value, lambda inner: self._resolve(inner, made, lookups - 1))
        if found.kind == "number":
            return number(found.value, name)
        if self.keeps_names and not all(map(self._is_sayable, leaves_of(found))):
            return None
        if isinstance(value, ast.Name) and found.node is not None:
            return found
        self.lines.update(lines_of(made))
        alias = name if self.scope.unchanged(name, made, at, after=True) else found.node
        term = Term(found.kind, found.name, found.parts, found.marks, found.value, alias)
        if alias is name and term.kind in ("sum", "product") and len(term.parts) > 1:
            self.named.append(term)
        return term

    def _returned(self, node: ast.expr, at: ast.stmt, lookups: int) -> Term | None:
        """The term that a call of the file's function returns, or a property. It must be one
        expression of the arguments and the module's attributes."""
        is_call = isinstance(node, ast.Call)
        callee = node.func if isinstance(node, ast.Call) else node
        function, own = self.scope.functions.get(dotted(callee)), None
        if function is None and isinstance(callee, ast.Attribute):
            own = self._object(callee.value, at, lookups)
            methods = own[0].body if own else []
            function = next((s for s in methods if _is_named(s, callee.attr)), None)
        if function is None or is_call != _is_called(function):
            return None
        given = self._arguments(function, node, at, lookups)
        if given is None:
            return None
        *rest, last = function.body
        plain = all(isinstance(s, ast.Assign | ast.Expr) for s in rest)
        if not plain or not isinstance(last, ast.Return) or last.value is None:
            return None
        inside = self.scope.within(function, given | (own[1] if own else {}))
        reading = Reading(inside, last)
        found = term_of(last.value, lambda name: reading._resolve(name, last, lookups - 1))
        leaves = list(leaves_of(found))
        if not all(self._is_known(t, inside) for t in leaves):
            return None
        if own and any(t.kind != "number" and id(t.node) in inside.owners for t in leaves):
            return None  # of the object, and not what its class was given
        self.lines.update(reading.lines, lines_of(last))
        return Term(found.kind, found.name, found.parts, found.marks, found.value, node)

    def _of_distribution(self, node: ast.expr, at: ast.stmt, lookups: int) -> Term | None:
        """The term that a distribution's method computes, where the distribution was made here."""
        match node:
            case ast.Call(func=ast.Attribute(value=maker, attr=method), args=[value], keywords=[]):
                made = self.scope.assignment(maker.id, at) if isinstance(maker, ast.Name) else None
                maker, at_made = (made[1], made[0]) if made else (maker, at)
            case _:
                return None
        name = last_name(maker.func) if isinstance(maker, ast.Call) else ""
        if (name, method) not in _DISTRIBUTIONS or not isinstance(maker, ast.Call):
            return None
        names, text = _DISTRIBUTIONS[name, method]
        given: dict[Any, ast.expr] = dict(zip(names, maker.args, strict=False))
        given |= {k.arg: k.value for k in maker.keywords}
        if given.keys() != {*names}:
            return None
        self.lines.update(lines_of(at_made))
        known = {
            n: term_of(x, lambda inner: self._resolve(inner, at_made, lookups - 1))
            for n, x in given.items()
        }
        known["value"] = term_of(value, lambda inner: self._resolve(inner, at, lookups - 1))
        formula = ast.parse(text, mode="eval").body
        return term_of(formula, lambda n: known.get(n.id) if isinstance(n, ast.Name) else None)

    def _arguments(
        self, function: Function, node: ast.expr, at: ast.stmt, lookups: int
    ) -> dict[str, Term] | None:
        """The terms that a call passes for a function's parameters; None where unclear."""
        names = [a.arg for a in function.args.args]
        names = names[1:] if names[:1] in (["self"], ["cls"]) else names
        arguments = [*node.args] if isinstance(node, ast.Call) else []
        if isinstance(node, ast.Call):
            named = {k.arg: k.value for k in node.keywords}
            arguments += [named[n] for n in names[len(arguments) :] if n in named]
        if len(arguments) != len(names) or any(isinstance(a, ast.Starred) for a in arguments):
            return None
        return {
            n: term_of(a, lambda inner: self._resolve(inner, at, lookups - 1))
            for n, a in zip(names, arguments, strict=True)
        }

    def _object(
        self, name: ast.expr, at: ast.stmt, lookups: int
    ) -> tuple[ast.ClassDef, dict[str, Term]] | None:
        """The class of an object made in this function, and the terms of its attributes:
        ``self.loc = loc`` in its ``__init__``, or the fields of a dataclass."""
        made = self.scope.assignment(name.id, at) if isinstance(name, ast.Name) else None
        if made is None or not isinstance(made[1], ast.Call) or not lookups:
            return None
        owner = self.scope.classes.get(ast.unparse(made[1].func))
        if owner is None:
            return None
        begins = (s for s in owner.body if _is_named(s, "__init__"))
        begin = next(begins, None) or _with_fields(owner)
        given = self._arguments(begin, made[1], made[0], lookups)
        if given is None:
            return None
        inside = Reading(self.scope.within(begin, given), begin.body[-1])
        self.lines |= {made[0].lineno}
        fields = {
            ast.unparse(target): term_of(
                value, lambda inner: inside._resolve(inner, begin.body[-1], lookups - 1)
            )
            for target, value in _given_to_attributes(begin)
        }
        return owner, {name: t for name, t in fields.items() if not any(map(_makes, leaves_of(t)))}

    def _is_known(self, leaf: Term, inside: Scope) -> bool:
        """Whether a leaf of a function's result means the same at the call."""
        if leaf.kind == "number" or leaf.node is None or id(leaf.node) in self.scope.owners:
            return True
        if id(leaf.node) not in inside.owners:  # as what a loop in an expression binds
            return True
        return leaf.name.startswith("self.") or leaf.name in ("True", "False", "None")

    def spelled(self, t: Term) -> str | None:
        """The term as text that is right at the statement; None where there is none."""
        used: set[int] = set()

        def spell(part: Term) -> str | None:
            node = part.node
            if node is None:
                return None
            owner = self.scope.owners.get(id(node))
            if owner is None:  # of a rule's text
                return None
            pure = is_pure(node)
            if owner is not self.statement and not (pure and self._right(node, owner)):
                if part.parts:
                    return None
                raise _Unspellable
            if not pure:
                if id(node) in used or any(id(n) in used for n in ast.walk(node)):
                    raise _Unspellable
                used.update(id(n) for n in ast.walk(node) if isinstance(n, ast.Call))
                used.add(id(node))
            return ast.unparse(node)

        try:
            return text_of(self._with_names(t), spell)
        except _Unspellable:
            return None

    def _with_names(self, t: Term) -> Term:
        """The term with sums and products replaced by the program's names for them: ``u - v`` for
        ``a + b - v``, where u is ``a + b``."""
        if t.node is not None and id(t.node) in self.scope.owners:
            return t
        parts = tuple(map(self._with_names, t.parts))
        if t.kind not in ("sum", "product"):
            return replace(t, parts=parts)
        items = replace(t, parts=parts).items
        for term in self.named:
            if term.kind != t.kind or not self._is_sayable(term):
                continue
            for sign in (1, -1):
                rest = _without(items, [(m * sign, p) for m, p in term.items])
                items = [*rest, (sign, term)] if rest is not None else items
        return replace(t, parts=tuple(p for _, p in items), marks=tuple(m for m, _ in items))

    def _is_sayable(self, leaf: Term) -> bool:
        """Whether a leaf can be written at the statement and has the same value there. A call that
        may have side effects cannot be made again."""
        node = leaf.node
        owner = self.scope.owners.get(id(node)) if node is not None else None
        if node is None or owner is None or owner is self.statement:
            return True
        return is_pure(node) and self._right(node, owner)

    def _right(self, node: ast.expr, owner: ast.stmt) -> bool:
        return self.scope.unchanged(node, owner, self.statement)


# (distribution, method) -> the names of its parameters, and the formula
_DISTRIBUTIONS = {
    ("Normal", "cdf"): (("loc", "scale"), "torch.special.ndtr((value - loc) / scale)"),
    ("Exponential", "cdf"): (("rate",), "1 - torch.exp(-rate * value)"),
}


def _without(items: Sequence[Any], taken: Sequence[Any]) -> list[Any] | None:
    """The items without those taken; None where one of those is not among them."""
    rest = list(items)
    for each in taken:
        if each not in rest:
            return None
        rest.remove(each)
    return rest


def _makes(leaf: Term) -> bool:
    """Whether a leaf is a call: by now the object that it made may have another value."""
    return isinstance(leaf.node, ast.Call)


def leaves_of(t: Term) -> Iterator[Term]:
    if not t.parts:
        yield t
    for part in t.parts:
        yield from leaves_of(part)


# Where a program writes what the catalogue knows a better form of, and the edit that writes it
# so.

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
    found: dict[tuple[int, str], Rewriting] = {}

    scopes = Scope.behind(text, line)
    # in the function itself; else what it gives is written out where it is called
    for scope, out in [*((s, False) for s in scopes), *((s, True) for s in scopes[1:])]:
        if out and found:
            break
        for statement in scope.reached_by(line):
            # what the line fails with may have been computed before it
            for made in _of_statement(scope, statement, rules, line in lines_of(statement), out):
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


def _of_statement(
    scope: Scope, statement: ast.stmt, rules: Sequence[Rule], by_names: bool, out: bool
) -> Iterator[Rewriting]:
    """Rewritings of one expression of the statement, and of all together; where there is none, of
    names by what they stand for. out: rewrite calls of the file's functions alone, with what these
    return."""
    nodes = scope.own_calls(statement) if out else scope.expressions(statement)
    places = [p for n in nodes if (p := _place(scope, statement, n, rules))]
    places = [p for p in places if not _is_undone(statement, p)]
    if not places and by_names:
        names = (n for n in ast.walk(statement) if isinstance(n, ast.Name))
        read = [
            n for n in names if isinstance(n.ctx, ast.Load) and scope.assignment(n.id, statement)
        ]
        places = [p for n in read if (p := _place(scope, statement, n, rules))]
    apart: list[_Place] = []
    for place in places:  # the outermost first
        if not any(place.node in ast.walk(other.node) for other in apart):
            apart.append(place)
    if len(apart) > 1:
        yield _rewriting(scope, statement, apart)
    for place in places:
        yield _rewriting(scope, statement, [place])


def _is_undone(statement: ast.stmt, place: _Place) -> bool:
    """Whether the new exponential is the operand of a logarithm: where it vanishes, the logarithm
    has no value."""
    if term_of(ast.parse(place.text, mode="eval").body).name != "exp":
        return False
    calls = (term_of(n) for n in ast.walk(statement) if isinstance(n, ast.Call))
    return any(t.name in having("log") and t.parts[0].node is place.node for t in calls if t.parts)


def _rewriting(scope: Scope, statement: ast.stmt, places: list[_Place]) -> Rewriting:
    titles = ", ".join(dict.fromkeys(p.title for p in places))
    return Rewriting(
        titles if titles.startswith("an ") else f"rewritten with {titles}",
        *span_of(statement)[::2],
        scope.replaced(statement, [(p.node, p.text) for p in places]),
        ", ".join(ast.unparse(p.node) for p in places),
        ", ".join(p.text for p in places),
        frozenset().union(*(p.lines for p in places)),
    )


def _place(
    scope: Scope, statement: ast.stmt, node: ast.expr, rules: Sequence[Rule]
) -> _Place | None:
    """An expression and its rewritten form; None where no rule knows it, or only a part of it."""
    written_to, _ = _without_out(node)
    for keeps_names in (False, True):
        old, reading = scope.term(statement, node, keeps_names)
        new, titles = rewritten(old, rules)
        if isinstance(node, ast.Call) and dotted(node.func) in scope.functions and new != old:
            titles = titles or [_told(new, frozenset(calls_in(old)))]
        spelled = reading.spelled(new) if titles and new != old else None
        if spelled is not None:
            text = f"{written_to}.copy_({spelled})" if written_to else spelled
            lines = frozenset(reading.lines.union(lines_of(node)))
            return _Place(node, titles[-1], text, lines)
    return None


def _without_out(node: ast.expr) -> tuple[str, ast.expr]:
    """The target of a call's ``out=``, "" without one, and the call without that argument."""
    if not isinstance(node, ast.Call):
        return "", node
    target = next((k.value for k in node.keywords if k.arg == "out"), None)
    if not isinstance(target, ast.Name | ast.Attribute):
        return "", node
    rest = [k for k in node.keywords if k.arg != "out"]
    return ast.unparse(target), ast.copy_location(ast.Call(node.func, node.args, rest), node)


def rewritten(t: Term, rules: Sequence[Rule] = CATALOGUE) -> tuple[Term, list[str]]:
    """The rewritten term, and titles of the rules used on all of it; none: no better."""
    titles: list[str] = []
    t = _repeated(t, [r for r in rules if not r.late], titles)
    if not titles and (better := _better_form(t, rules)) is not None:
        made, _ = rewritten(better, CATALOGUE)
        return made, [_told(better, frozenset(calls_in(t)))]
    inside = _with_parts_rewritten(t, rules)
    made = _repeated(inside, rules, titles)
    # taken apart late, its parts may be known: a logarithm of a quotient of sums
    return (made if made == inside else _with_parts_rewritten(made, rules)), titles


def _better_form(t: Term, rules: Sequence[Rule]) -> Term | None:
    """A better form than the rules give: a logarithm taken inside; a quotient with none in its
    divisor; the exponential of logarithms for a long product, and with other rules than the
    catalogue's for a quotient."""
    first = rules is CATALOGUE
    if t.name in having("log") and (first or "matmul" in calls_in(t)):
        t = products_summed(t, vector=first)
    elif not first or t.name == "prod":
        return as_exponential(t)
    if t.kind == "product":
        return _as_one_quotient(t)
    if t.kind != "call" or t.name not in having("log") | {"log1p"}:
        return None
    x = t.parts[0]
    if t.name == "log1p":
        x = summed([(1, number(Fraction(1))), (1, x)])
    found = log_of(x)
    if found is None or t.name in ("log", "log1p"):
        return found
    return multiplied([(1, found), (-1, number(math.log(2 if t.name == "log2" else 10)))])


def _as_one_quotient(t: Term) -> Term | None:
    """``1 / (1 / a + 1 / b)`` as ``a * b / (b + a)``, ``m**2 * (1 - x / m)`` as ``m * (m - x)``;
    None where no quotient is in a divisor and nothing cancels out."""
    above, below = _quotient(t)
    items = [*above.items] if above.kind == "product" else [(1, above)]
    cancels = False
    for part in (p for mark, p in below.items if mark > 0) if below.kind == "product" else [below]:
        at = next(
            (i for i, (mark, p) in enumerate(items) if mark > 0 and _holds_factor(p, part)), -1
        )
        cancels = cancels or at >= 0
        if at < 0:
            items.append((-1, part))
        elif items[at][1] == part:
            del items[at]
        else:
            base, exponent = items[at][1].parts
            items[at] = 1, raised(base, number(exponent.value - 1))
    inner = any(mark < 0 and _quotient(part)[1] != _ONE for mark, part in t.items)
    return multiplied(items) if inner or (cancels and not _is_plain(t)) else None


def _holds_factor(t: Term, factor: Term) -> bool:
    whole = t.kind == "power" and t.parts[1].kind == "number" and t.parts[1].value >= 2
    return t == factor or (whole and t.parts[0] == factor)


def _is_plain(t: Term) -> bool:
    """Whether no factor is a sum of quotients."""
    return all(p.kind != "sum" or _quotient(p)[1] == _ONE for _, p in t.items)


_ONE = number(Fraction(1))


def _quotient(t: Term) -> tuple[Term, Term]:
    """A term as numerator and divisor; numbers that it is divided by stay in the numerator."""
    if t.kind == "product":
        numbers = [(mark, p) for mark, p in t.items if p.kind == "number"]
        pairs = [_quotient(p)[::mark] for mark, p in t.items if p.kind != "number"]
        above = multiplied([*numbers, *((1, n) for n, _ in pairs)])
        return above, multiplied([(1, d) for _, d in pairs])
    if t.kind == "sum":
        split = [(mark, *_quotient(p)) for mark, p in t.items]
        common = list(dict.fromkeys(d for _, _, d in split if d != _ONE))
        parts = [
            (mark, multiplied([(1, n), *((1, c) for c in common if c != d)]))
            for mark, n, d in split
        ]
        return (gathered(parts), multiplied([(1, c) for c in common])) if common else (t, _ONE)
    if t.kind == "index":
        above, below = _quotient(t.parts[0])
        taken = Term("index", parts=(above, t.parts[1])) if below != _ONE else t
        return taken, below  # which broadcasts, or the trial tells
    is_root = t.kind == "call" and t.name == "sqrt"
    if is_root or (t.kind == "power" and t.parts[1].kind == "number" and t.parts[1].value > 0):
        above, below = _quotient(t.parts[0])
        if below == _ONE:
            return t, _ONE
        if not is_root:
            return raised(above, t.parts[1]), raised(below, t.parts[1])
        if below.kind == "power" and below.parts[1].value == 2:
            return taken_of("sqrt", above), below.parts[0]  # the trial tells where it is negative
        return taken_of("sqrt", above), _root(below) or taken_of("sqrt", below)
    return t, _ONE


def _told(t: Term, known: frozenset[str]) -> str:
    """The name of a form: its first function that the program does not call itself."""
    names = [n for n in calls_in(t) if n not in known]
    plain = "the exponent" if not having("exponential").isdisjoint(names) else "one quotient"
    if "prod" in known and {"log", "sum"} <= {*calls_in(t)}:
        plain = "a sum of logarithms"
    return next((n for n in names if n not in _PLAIN), plain)


_PLAIN = having("moves", "exponential", "log", "compares") | {"sum", "ones_like"}


def _with_parts_rewritten(t: Term, rules: Sequence[Rule]) -> Term:
    if not t.parts or t.kind == "hole":
        return t
    inner = t.parts if t.kind != "index" else t.parts[:1]
    return _with_parts(t, tuple(rewritten(p, rules)[0] for p in inner) + t.parts[len(inner) :])


def _repeated(t: Term, rules: Sequence[Rule], titles: list[str]) -> Term:
    for _ in range(8):
        known = frozenset(calls_in(t))
        fitting = [rule for rule in rules if rule.calls <= known]
        for rule, partly in [(r, False) for r in fitting] + [(r, True) for r in fitting]:
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
    made = Term(t.kind, t.name, parts, t.marks, t.value)
    match t.kind:
        case "sum":
            return summed(made.items)
        case "product":
            return multiplied(made.items)
        case "power":
            return raised(parts[0], parts[1])
    return made


def applied(rule: Rule, t: Term, partly: bool = False) -> Term | None:
    """What the rule makes of a term or some of its parts; None where it does not match."""
    p = rule.before
    found = _part(p, t) if partly else ((bound, []) for bound in matches(p, t, {}))
    for bound, rest in found:
        if rule.root and bound["_p"].value == int(bound["_p"].value):
            continue
        made = filled(rule.after, bound)
        if made is not None:
            return _JOINED[p.kind]([*rest, (1, made)]) if partly else made
    return None


def _part(p: Term, t: Term) -> Iterator[tuple[Binding, list[tuple[int, Term]]]]:
    """Matches of some summands or factors of the term, with what is left."""
    if p.kind not in _JOINED or len(p.parts) < 2:
        return
    whole = t
    if p.kind == "product" and t.kind == "sum" and len(t.parts) == 1:  # minus a product
        whole = t.parts[0]
    if whole.kind != p.kind:
        return
    sign = [] if whole is t else [(1, number(Fraction(-1)))]
    for bound, rest in _some(p, whole, {}):
        if rest:
            yield bound, [*rest, *sign]


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
    root = _root(t) if p.kind == "power" and p.parts[1].value == 2 else None
    if root is not None:
        yield from matches(p.parts[0], root, bound)
    if p.kind != t.kind:
        return
    if p.kind in ("number", "leaf"):
        if p == t:
            yield bound
    elif p.kind in _JOINED:
        for found, rest in _some(p, t, bound):
            if not rest:
                yield found
    elif p.kind != "call" or (p.name == t.name and p.marks == t.marks):
        if len(p.parts) == len(t.parts):
            yield from _all(p.parts, t.parts, bound)


def _root(t: Term) -> Term | None:
    """The term whose square a product or a power other than a square is; None of others."""
    if t.kind not in ("power", "product") or (t.kind == "power" and t.parts[1].value == 2):
        return None
    roots: list[tuple[int, Term]] = []
    for mark, part in t.items if t.kind == "product" else [(1, t)]:
        if part.kind == "number" and part.value > 0:
            root = math.sqrt(part.value)
            roots.append((mark, number(Fraction(root) if root == int(root) else root)))
        elif (
            part.kind == "power" and part.parts[1].kind == "number" and not part.parts[1].value % 2
        ):
            half = number(Fraction(part.parts[1].value) / 2)
            roots.append((mark, raised(part.parts[0], half)))
        else:
            return None
    return multiplied(roots)


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
    """Ways to match the pattern's summands or factors with some of the term's, and the rest."""
    wanted = sorted(p.items, key=lambda item: (item[1].kind == "hole", item[1].kind == "sum"))
    yield from _assigned(wanted, t.items, bound, p.kind)


_JOINED = {"sum": summed, "product": multiplied}


def _assigned(
    wanted: list[tuple[int, Term]], items: list[tuple[int, Term]], bound: Binding, kind: str
) -> Iterator[tuple[Binding, list[tuple[int, Term]]]]:
    if not wanted:
        yield bound, items
        return
    (mark, p), later = wanted[0], wanted[1:]
    have = bound.get(p.name) if p.kind == "hole" else None
    if have is not None and have.kind == kind:  # a hole that stands for several of them
        left = _without(items, [(m * mark, part) for m, part in have.items])
        if left is not None:
            yield from _assigned(later, left, bound, kind)
        return
    anything = p.kind == "hole" and have is None and not p.name.startswith("_")
    if anything and not later and len(items) > 1:
        # the last hole takes all that is left: k * x in sin(k * x), w in w * exp(x)
        yield {**bound, p.name: _JOINED[kind]([(m * mark, part) for m, part in items])}, []
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
    if p.name in ("math_log", "math_sqrt", "log", "sqrt") and have[0].kind == "number":
        value = have[0].value
        if value <= 0:
            return None
        root = p.name.endswith("sqrt")
        return number(Fraction(str(math.sqrt(value))) if root else math.log(value))
    if p.name == "powers":
        return _powers(have[0], have[1].value)
    if p.name == "expm1" and have[0].kind == "number":
        return number(math.expm1(have[0].value))
    if p.kind == "sum":
        return gathered(replace(p, parts=have).items)
    return _with_parts(p, have)


def _powers(x: Term, count: Fraction | float) -> Term | None:
    """1 + x + ... + x**(count - 1), by Horner's rule."""
    if count != int(count) or not 2 <= count <= MOST_POWERS:
        return None
    total = number(Fraction(1))
    for _ in range(int(count) - 1):
        total = summed([(1, number(Fraction(1))), (1, multiplied([(1, x), (1, total)]))])
    return total
