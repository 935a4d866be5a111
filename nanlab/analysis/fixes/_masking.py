"""Rewritings of a program's own masks, of its update rule and of its hand-written backward."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence

from nanlab.analysis.fixes._calls import span_of
from nanlab.analysis.fixes._inlining import is_one
from nanlab.analysis.fixes._rewriting import Page, Rewritten, Spelling, called
from nanlab.analysis.fixes._scope import Scope
from nanlab.trace.names import Span


def double_where(
    text: str,
    line: int,
    spellings: Sequence[Spelling],
    which: int,
    benign: str,
    products: frozenset[Span] | None = None,
) -> Rewritten | None:
    """``where(mask, f(x), 0)`` with the mask on the argument, too: ``where(mask, f(where(mask, x,
    benign)), 0)``.

    which: the operand of f that is bad. The mask may stand around the line's own call, or, on a
    line below it, around the name that the result was assigned; ``masked_fill`` counts as well.
    products: those that may be masks; None: all. None where no mask is found, or where it is made
    only after the line.
    """
    scope = Scope.of(text, line)
    if scope is None:
        return None
    page, changes = scope.page, []
    for node in scope.on_line():
        found = next((f for s in spellings if (f := s(node)) is not None), None)
        if found is None or which >= len(found.operands):
            continue
        mask = next(_masks(scope, node, products), None)
        if mask is None:
            continue
        operand, (condition, keeps) = found.operands[which], mask
        x = page.source(operand)
        inner = f"{condition}, {x}, {benign}" if keeps else f"{condition}, {benign}, {x}"
        changes.append((operand, f"torch.where({inner})"))
    return page.replaced(changes[:1]) if changes else None


def masked_divisors(
    text: str, line: int, product: Spelling, quotients: Sequence[Spelling]
) -> Rewritten | None:
    """``where(mask, (1 / y) * x, 0)`` with the mask on every divisor of the product: ``(1 /
    where(mask, y, 1)) * x``.

    None where the line has no product of quotients, or no mask is found.
    """
    scope = Scope.of(text, line)
    if scope is None:
        return None
    for node in scope.on_line():
        mask = next(_masks(scope, node), None) if product(node) is not None else None
        if mask is None:
            continue
        found = [
            f
            for n in ast.walk(node)
            if (f := next((f for s in quotients if (f := s(n)) is not None), None))
        ]
        divisors = [f.operands[-1] for f in found]
        outer = [
            d
            for d in divisors
            if not any(d is not e and any(n is d for n in ast.walk(e)) for e in divisors)
        ]
        condition, keeps = mask
        sources = [(d, scope.page.source(d)) for d in outer]
        texts = [
            (d, f"torch.where({condition}, {f'{y}, 1.0' if keeps else f'1.0, {y}'})")
            for d, y in sources
        ]
        return scope.page.replaced(texts) if texts else None
    return None


def _masks(
    scope: Scope, node: ast.AST, products: frozenset[Span] | None = None
) -> Iterator[tuple[str, bool]]:
    """(condition, whether it is true where the result is kept) of the masks put on the result of an
    expression."""
    for outer in scope.on_line():
        if outer is not node:
            yield from _mask(
                scope.page, outer, lambda part: any(n is node for n in ast.walk(part)), products
            )
    holder = next(
        (
            n
            for n in ast.walk(scope.body)
            if isinstance(n, ast.Assign) and any(m is node for m in ast.walk(n))
        ),
        None,
    )
    if holder is None or not isinstance(holder.targets[0], ast.Name):
        return
    name = holder.targets[0].id
    for later in ast.walk(scope.body):
        if later is holder or getattr(later, "lineno", 0) < scope.line:
            continue
        for condition, keeps in _mask(
            scope.page, later, lambda part: isinstance(part, ast.Name) and part.id == name, products
        ):
            if not scope.rebound(ast.parse(condition), scope.line, later.lineno):  # type: ignore[attr-defined]
                yield condition, keeps


def _mask(
    page: Page, node: ast.AST, holds: object, products: frozenset[Span] | None
) -> Iterator[tuple[str, bool]]:
    assert callable(holds)
    found = called("where", arity=3)(node)
    if found is not None:
        condition, kept, other = found.operands
        if holds(kept) or holds(other):
            yield page.source(condition), bool(holds(kept))
    filled = called("masked_fill", "masked_fill_", arity=2)(node)
    if filled is not None and holds(filled.operands[0]):
        yield page.source(filled.operands[1]), False
    if (
        isinstance(node, ast.BinOp)
        and isinstance(node.op, ast.Mult)
        and (products is None or span_of(node) in products)
    ):
        for kept, factor in ((node.left, node.right), (node.right, node.left)):
            if holds(kept) and isinstance(factor, ast.Name | ast.Attribute | ast.Subscript):
                yield f"{page.source(factor)} != 0", True
    target = node.targets[0] if isinstance(node, ast.Assign) else None
    if (
        isinstance(target, ast.Subscript)
        and holds(target.value)
        and isinstance(target.slice, ast.Compare | ast.Name)
    ):
        yield page.source(target.slice), False


def finite_mask(text: str, line: int) -> Rewritten | None:
    """``masked_fill(mask, float("-inf"))`` with the dtype's lowest number; the last one on the line
    or above it."""
    scope = Scope.of(text, line)
    if scope is None:
        return None
    found: list[tuple[ast.expr, str]] = []
    for node in sorted(
        (n for n in ast.walk(scope.body) if isinstance(n, ast.Call)), key=lambda n: n.lineno
    ):
        fill = called("masked_fill", "masked_fill_", arity=3)(node)
        if fill is not None and node.lineno <= line and _is_minus_infinity(fill.operands[2]):
            x = scope.page.source(fill.operands[0])
            found.append(
                (
                    fill.operands[2],
                    f"torch.finfo({x}.dtype).min" if _is_plain(fill.operands[0]) else "",
                )
            )
    return scope.page.replaced(found[-1:]) if found and found[-1][1] else None


def _is_plain(node: ast.expr) -> bool:
    return isinstance(node, ast.Name | ast.Attribute)


def _is_minus_infinity(node: ast.expr) -> bool:
    return ast.unparse(node).replace('"', "'") in (
        "float('-inf')",
        "-float('inf')",
        "-torch.inf",
        "-math.inf",
        "-np.inf",
        "-inf",
    )


def corrections(text: str, line: int) -> Rewritten | None:
    """Every ``x / (1 - beta ** count)`` in the function around a line, with 1 in place of a divisor
    that is 0."""
    scope = Scope.of(text, line)
    if scope is None:
        return None
    found = [
        n for n in ast.walk(scope.body) if isinstance(n, ast.BinOp) and isinstance(n.op, ast.Div)
    ]
    divisors = [n.right for n in found if _is_correction(n.right) or n.lineno == line]
    outer = [n for n in divisors if not any(n is not m and n in ast.walk(m) for m in divisors)]
    return (
        scope.page.replaced([(n, f"{scope.page.source(n)} or 1.0") for n in outer])
        if outer
        else None
    )


def _is_correction(node: ast.expr) -> bool:
    if not isinstance(node, ast.BinOp) or not isinstance(node.op, ast.Sub) or not is_one(node.left):
        return False
    return isinstance(node.right, ast.BinOp) and isinstance(node.right.op, ast.Pow)


def backward_lines(text: str, name: str) -> range:
    """The lines of the ``backward`` of an autograd.Function; empty where the text has none."""
    page = Page.of(text)
    classes = (
        [n for n in ast.walk(page.tree) if isinstance(n, ast.ClassDef) and n.name == name]
        if page
        else []
    )
    for function in (
        n
        for c in classes
        for n in c.body
        if isinstance(n, ast.FunctionDef) and n.name == "backward"
    ):
        return range(function.lineno, (function.end_lineno or function.lineno) + 1)
    return range(0)
