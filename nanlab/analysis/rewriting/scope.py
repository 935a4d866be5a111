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
            elif not isinstance(statement, Function | ast.ClassDef):
                self.order.append(statement)
                for name in ("body", "orelse", "finalbody"):
                    self._read(getattr(statement, name, []), inside)
                for handler in getattr(statement, "handlers", []):
                    self._read(handler.body, inside)

    def statements(self) -> Iterator[ast.stmt]:
        """The statements that compute something."""
        for s in self.order:
            if isinstance(s, _SIMPLE) and isinstance(s.value, ast.expr):
                yield s

    def expressions(self, statement: ast.stmt) -> Iterator[ast.expr]:
        """The computing expressions of a statement, the outermost first."""
        for node in ast.walk(statement.value):  # type: ignore[attr-defined]
            if isinstance(node, ast.BinOp | ast.Call | ast.UnaryOp):
                yield node

    def reading(self, statement: ast.stmt) -> Reading:
        """What the names of a statement stand for."""
        return Reading(self, statement)

    def assignment(self, name: str, before: ast.stmt) -> ast.Assign | None:
        """The assignment of a name that is sure to have been the last before a statement."""
        found = [s for s in self.order if name in _bound(s)]
        earlier = [s for s in found if s.lineno < before.lineno]
        if not earlier or not isinstance(earlier[-1], ast.Assign):
            return None
        made = earlier[-1]
        if len(made.targets) != 1 or not isinstance(made.targets[0], ast.Name):
            return None
        mine, theirs = self.blocks[id(made)], self.blocks[id(before)]
        if theirs[: len(mine)] != mine:
            return None
        # in a block of its own, a loop perhaps, one that comes later may have run before
        later = [
            s
            for s in found
            if s.lineno > before.lineno and self.blocks[id(s)][: len(theirs)] == theirs
        ]
        return None if later and mine != theirs else made

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
        part = [row.encode() for row in self.text.splitlines()[first - 1 : last]]
        for node, new in sorted(
            changes, key=lambda c: (c[0].lineno, c[0].col_offset), reverse=True
        ):
            start, end = node.lineno - first, (node.end_lineno or node.lineno) - first
            head, tail = part[start][: node.col_offset], part[end][node.end_col_offset or 0 :]
            whole = node is statement.value  # type: ignore[attr-defined]
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
        made = self.scope.assignment(name.id, at)
        if made is None:
            return None
        found = term_of(made.value, lambda inner: self._resolve(inner, made, lookups - 1))
        if found.kind == "number":
            return None
        if isinstance(made.value, ast.Name) and found.node is not None:
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
