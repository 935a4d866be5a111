"""The function around a line: its statements, what its names stand for, and what may be written
where."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass, field

from nanlab.analysis.rewriting.term import Term, is_pure, term_of, text_of

_SIMPLE = (ast.Assign, ast.AugAssign, ast.AnnAssign, ast.Return, ast.Expr)
Function = ast.FunctionDef | ast.AsyncFunctionDef
MOST_LOOKUPS = 12


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
    # augmented assignment -> what it computes
    joined: dict[int, ast.BinOp] = field(default_factory=dict)

    @classmethod
    def around(cls, text: str, line: int) -> Scope | None:
        """The innermost function that holds the line; None where the text is no Python."""
        try:
            tree = ast.parse(text)
        except SyntaxError:
            return None
        best: Function | None = None
        for node in ast.walk(tree):
            if isinstance(node, Function) and node.lineno <= line <= (node.end_lineno or 0):
                if best is None or node.lineno > best.lineno:
                    best = node
        if best is None:
            made = cls(text, tree.body, frozenset())
        else:
            a = best.args
            given = [*a.posonlyargs, *a.args, *a.kwonlyargs, *filter(None, (a.vararg, a.kwarg))]
            made = cls(text, best.body, frozenset(x.arg for x in given))
        made._read(made.body, ())
        return made

    def _read(self, body: list[ast.stmt], blocks: tuple[int, ...]) -> None:
        inside = (*blocks, id(body))
        for statement in body:
            self.blocks[id(statement)] = inside
            if isinstance(statement, _SIMPLE):
                self.order.append(statement)
                for node in ast.walk(statement):
                    self.owners[id(node)] = statement
                if isinstance(statement, ast.AugAssign) and isinstance(statement.target, ast.Name):
                    self._join(statement, statement.target.id)
            elif not isinstance(statement, Function | ast.ClassDef):
                self.order.append(statement)
                for name in ("body", "orelse", "finalbody"):
                    self._read(getattr(statement, name, []), inside)
                for handler in getattr(statement, "handlers", []):
                    self._read(handler.body, inside)

    def _join(self, statement: ast.AugAssign, name: str) -> None:
        read = ast.copy_location(ast.Name(name, ast.Load()), statement.target)
        made = ast.BinOp(read, statement.op, statement.value)
        ast.copy_location(made, statement)
        self.joined[id(statement)] = made
        for node in (read, made):
            self.owners[id(node)] = statement

    def statements(self) -> Iterator[ast.stmt]:
        """The statements that compute something."""
        for s in self.order:
            if isinstance(s, _SIMPLE) and isinstance(s.value, ast.expr):
                yield s

    def expressions(self, statement: ast.stmt) -> Iterator[ast.expr]:
        """The computing expressions of a statement, the outermost first."""
        whole = self.joined.get(id(statement))
        if whole is not None and self._is_fresh(statement):
            yield whole
        for node in ast.walk(statement.value):  # type: ignore[attr-defined]
            if isinstance(node, ast.BinOp | ast.Call | ast.UnaryOp):
                if not self._gives_names(node):
                    yield node

    def _is_fresh(self, statement: ast.stmt) -> bool:
        """Whether an augmented assignment writes a tensor that nothing else shows, so that a new
        one does as well."""
        made = self.assignment(statement.target.id, statement)  # type: ignore[attr-defined]
        return made is not None and isinstance(made[1], ast.BinOp | ast.Call) and is_pure(made[1])

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

    def reading(self, statement: ast.stmt) -> Reading:
        """What the names of a statement stand for."""
        return Reading(self, statement)

    def assignment(self, name: str, before: ast.stmt) -> tuple[ast.stmt, ast.expr] | None:
        """The statement that is sure to have been the last to assign a name before another, and the
        value."""
        found = [s for s in self.order if name in _bound(s)]
        earlier = [s for s in found if s.lineno < before.lineno]
        value = self._value_of(earlier[-1], name) if earlier else None
        if value is None:
            return None
        made = earlier[-1]
        mine, theirs = self.blocks[id(made)], self.blocks[id(before)]
        if theirs[: len(mine)] != mine:
            return None
        # in a block of its own, a loop perhaps, one that comes later may have run before
        later = [
            s
            for s in found
            if s.lineno > before.lineno and self.blocks[id(s)][: len(theirs)] == theirs
        ]
        return None if later and mine != theirs else (made, value)

    def _value_of(self, statement: ast.stmt, name: str) -> ast.expr | None:
        """What a statement assigns to a name; None where that is no expression of its own."""
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
        return None

    def unchanged(
        self, node: ast.AST, since: ast.stmt, until: ast.stmt, after: bool = False
    ) -> bool:
        """Whether what an expression reads is the same at two statements; after: behind the
        first."""
        if since is until:
            return True
        read = {n.id for n in ast.walk(node) if isinstance(n, ast.Name)}
        read |= {
            ast.unparse(n) for n in ast.walk(node) if isinstance(n, ast.Attribute | ast.Subscript)
        }
        between = self.order[self.order.index(since) + after : self.order.index(until)]
        return not any(_bound(s) & read or _written_in_place(s) & read for s in between)

    def replaced(self, statement: ast.stmt, changes: list[tuple[ast.expr, str]]) -> str:
        """The statement's lines with expressions replaced, without their indentation."""
        first, last = statement.lineno, statement.end_lineno or statement.lineno
        for node, new in changes:
            if node is self.joined.get(id(statement)):
                return f"{statement.target.id} = {new}"  # type: ignore[attr-defined]
        part = [row.encode() for row in self.text.splitlines()[first - 1 : last]]
        for node, new in sorted(
            changes, key=lambda c: (c[0].lineno, c[0].col_offset), reverse=True
        ):
            start, end = node.lineno - first, (node.end_lineno or node.lineno) - first
            head, tail = part[start][: node.col_offset], part[end][node.end_col_offset or 0 :]
            whole = node is getattr(statement, "value", None)
            atomic = isinstance(
                ast.parse(new, mode="eval").body,
                ast.Call | ast.Name | ast.Attribute | ast.Subscript,
            )
            bare = head.rstrip()[-1:] in (b"(", b"[", b",") and tail.lstrip()[:1] in (
                b")",
                b"]",
                b",",
            )
            text = new if whole or atomic or bare else f"({new})"
            part[start : end + 1] = [head + text.encode() + tail]
        return _aligned("\n".join(row.decode() for row in part))


def _aligned(text: str) -> str:
    """The text with its first line's indentation taken off every line."""
    rows = text.split("\n")
    indent = len(rows[0]) - len(rows[0].lstrip())
    return "\n".join(row[indent:] if not row[:indent].strip() else row for row in rows)


def _bound(s: ast.stmt) -> set[str]:
    """Names and attributes that a statement gives another value."""
    found: set[str] = set()
    targets: list[ast.AST] = []
    match s:
        case ast.Assign():
            targets = list(s.targets)
        case ast.AugAssign() | ast.AnnAssign() | ast.For() | ast.AsyncFor():
            targets = [s.target]
        case ast.With() | ast.AsyncWith():
            targets = [i.optional_vars for i in s.items if i.optional_vars]
        case ast.Delete():
            targets = list(s.targets)
        case ast.Import() | ast.ImportFrom():
            return {(a.asname or a.name).split(".")[0] for a in s.names}
        case ast.Global() | ast.Nonlocal():
            return set(s.names)
    for target in targets:
        for node in ast.walk(target):
            if isinstance(node, ast.Name | ast.Attribute) and not isinstance(node.ctx, ast.Load):
                found.add(ast.unparse(node))
            if isinstance(node, ast.Subscript) and not isinstance(node.ctx, ast.Load):
                found.add(ast.unparse(node.value))
    if isinstance(s, _SIMPLE) and s.value is not None:
        found |= {n.target.id for n in ast.walk(s.value) if isinstance(n, ast.NamedExpr)}
    return found


def _written_in_place(s: ast.stmt) -> set[str]:
    """What a statement changes by a method such as ``add_``."""
    found = set()
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
    return found


def _assigned_before(name: ast.Name, statement: ast.stmt) -> ast.expr | None:
    """The value of a name that an expression earlier in its own statement assigns."""
    if not isinstance(statement, _SIMPLE) or statement.value is None:
        return None
    found = [
        n.value
        for n in ast.walk(statement.value)
        if isinstance(n, ast.NamedExpr)
        and n.target.id == name.id
        and (n.end_lineno, n.end_col_offset) <= (name.lineno, name.col_offset)
    ]
    return found[0] if len(found) == 1 else None


@dataclass
class Reading:
    """The names of one statement, followed to what they were assigned."""

    scope: Scope
    statement: ast.stmt
    lines: set[int] = field(default_factory=set)  # of the assignments that were followed

    def resolve(self, name: ast.expr) -> Term | None:
        """What a name stands for; None where it is not known."""
        return self._resolve(name, self.statement, MOST_LOOKUPS)

    def _resolve(self, name: ast.expr, at: ast.stmt, lookups: int) -> Term | None:
        if not isinstance(name, ast.Name) or not lookups:
            return None
        walrus = _assigned_before(name, at)
        if walrus is not None:
            return term_of(walrus, lambda inner: self._resolve(inner, at, lookups - 1))
        given = self.scope.assignment(name.id, at)
        if given is None:
            return None
        made, value = given
        found = term_of(value, lambda inner: self._resolve(inner, made, lookups - 1))
        if found.kind == "number":
            return None
        if isinstance(value, ast.Name) and found.node is not None:
            return found
        self.lines |= set(range(made.lineno, (made.end_lineno or made.lineno) + 1))
        alias = name if self.scope.unchanged(name, made, at, after=True) else found.node
        return Term(found.kind, found.name, found.parts, found.marks, found.value, alias)

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
            return text_of(t, spell)
        except _Unspellable:
            return None

    def _right(self, node: ast.expr, owner: ast.stmt) -> bool:
        return self.scope.unchanged(node, owner, self.statement)
