"""The function around a line of a user's file: what its names were bound to."""

from __future__ import annotations

import ast
from dataclasses import dataclass

from nanlab.analysis.fixes._rewriting import Page, Rewritten


@dataclass(frozen=True)
class Scope:
    """The function (or module) around a line, and the line."""

    page: Page
    body: ast.AST
    line: int

    @staticmethod
    def of(text: str, line: int) -> Scope | None:
        """None where the text does not parse."""
        page = Page.of(text)
        if page is None:
            return None
        around = [
            n
            for n in ast.walk(page.tree)
            if isinstance(n, ast.FunctionDef | ast.AsyncFunctionDef)
            and n.lineno <= line <= (n.end_lineno or 0)
        ]
        return Scope(page, max(around, key=lambda n: n.lineno, default=page.tree), line)

    def assignment(self, name: str, before: int) -> ast.Assign | None:
        """The last plain assignment to a name above a line; None where something else may have
        bound it."""
        found = [n for n in ast.walk(self.body) if _binds(n, name) and n.lineno < before]  # type: ignore[attr-defined]
        last = max(found, key=lambda n: n.lineno, default=None)  # type: ignore[attr-defined]
        return (
            last if isinstance(last, ast.Assign) and isinstance(last.targets[0], ast.Name) else None
        )

    def rebound(self, expression: ast.AST, first: int, last: int) -> bool:
        """Whether a name of an expression is bound anew between two lines, the last one
        exclusive."""
        names = {n.id for n in ast.walk(expression) if isinstance(n, ast.Name)}
        return any(
            _binds(n, name)
            for n in ast.walk(self.body)
            for name in names
            if first <= getattr(n, "lineno", -1) < last
        )

    def on_line(self) -> list[ast.AST]:
        """The expressions that reach over the line, outer ones first."""
        return list(self.page.covering(self.line))


def _binds(node: ast.AST, name: str) -> bool:
    targets: list[ast.expr] = []
    if isinstance(node, ast.Assign):
        targets = node.targets
    elif isinstance(node, ast.AugAssign | ast.AnnAssign | ast.For | ast.NamedExpr):
        targets = [node.target]
    return any(isinstance(n, ast.Name) and n.id == name for t in targets for n in ast.walk(t))


def whole_line(text: str, line: int) -> Rewritten | None:
    """A line as it stands; None where it is no whole statement."""
    page = Page.of(text)
    if page is None or not 0 < line <= len(page.lines):
        return None
    code = page.uncommented(line).decode().strip()
    try:
        ast.parse(code if not code.startswith("return") else f"def f():\n    {code}")
    except SyntaxError:
        return None
    return Rewritten(line, line, code) if code else None
