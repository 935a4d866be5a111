"""In-place methods, written as what they compute: ``d.sqrt_()`` as ``d = torch.sqrt(d)``."""

from __future__ import annotations

import ast
from dataclasses import replace

from nanlab.analysis.fixes._neighbours import MOVES
from nanlab.analysis.fixes._rewriting import Page
from nanlab.analysis.fixes._scope import Scope


def out_of_place(text: str, line: int, name: str) -> Page | None:
    """The page of a text in which the calls ``.name_()`` of a line bear the function's name; None
    where it has none.

    Only those that nobody else can see the change of: of a result that was computed in the same
    function, under a name or none.
    """
    scope = Scope.of(text, line)
    if scope is None:
        return None
    found = [n for n in scope.on_line() if _writes(n, name) and _own(scope, n)]
    for node in found:
        assert isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)
        node.func.attr = name
    return replace(scope.page, writes=frozenset(found)) if found else None


def _writes(node: ast.AST, name: str) -> bool:
    return (
        isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr == f"{name}_"
    )


def _own(scope: Scope, node: ast.AST) -> bool:
    """Whether what a call writes to is a result of the function around it, which has one name at
    most."""
    assert isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)
    written = node.func.value
    if isinstance(written, ast.Name):
        assigned = scope.assignment(written.id, scope.line)
        return assigned is not None and _made(assigned.value)
    alone = any(isinstance(n, ast.Expr) and n.value is node for n in ast.walk(scope.body))
    return _made(written) and not alone


def _made(node: ast.expr) -> bool:
    """Whether an expression is a new tensor, as far as it tells: no name, no part, no view of
    something."""
    if isinstance(node, ast.Call):
        called = node.func.attr if isinstance(node.func, ast.Attribute) else ""
        return called not in MOVES or called == "clone"
    return isinstance(node, ast.BinOp | ast.UnaryOp)
