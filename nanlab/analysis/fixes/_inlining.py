"""Rewritings that look at more than one expression: what a name was assigned, what stands around a call."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from nanlab.analysis.fixes._rewriting import Found, Page, Rewritten, Spelling, called
from nanlab.analysis.fixes._scope import Scope

_PICKING = frozenset("gather index_select squeeze flatten view reshape select unsqueeze diagonal take".split())
_BOUNDING = frozenset("clamp clamp_min clip float double".split())
MOST_LOOKUPS = 4


# -- the logarithm of a probability ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Probability:
    """The expression of a softmax or sigmoid, and what was done to its result before the logarithm."""

    call: Found
    line: int  # where it stands
    picks: tuple[str, ...] = ()  # texts to put after it: "[rows, y]", ".gather(1, y)"
    complement: bool = False  # 1 - p
    name: str = ""  # that it was assigned to, if that is all of the assignment


def logarithm_of(text: str, line: int, kind: str) -> Rewritten | None:
    """``log(softmax(z))`` as ``log_softmax(z)``, ``log(sigmoid(z))`` as ``logsigmoid(z)``, on one line or on several.

    kind: "softmax" or "sigmoid". Of a name the logarithm is taken of what it was assigned last; what was added to the
    probability or bounded it falls away. None where the line has no such logarithm.
    """
    scope = Scope.of(text, line)
    if scope is None:
        return None
    changes: list[tuple[ast.AST, str]] = []
    for node in scope.on_line():
        outer = called("log")(node)
        found = _probability(scope, outer.operands[0], kind, line) if outer is not None else None
        if found is None:
            continue
        if scope.rebound(found.call.operands[0], found.line, line) and found.line < line:
            return _in_two_steps(scope, node, found, kind) if not changes else None
        changes.append((node, _logarithm(scope.page, found, kind)))
    return scope.page.replaced(changes) if changes else None


def _probability(
    scope: Scope, node: ast.expr, kind: str, line: int, lookups: int = MOST_LOOKUPS
) -> _Probability | None:
    direct = called(kind)(node)
    if direct is not None:
        return _Probability(direct, node.lineno)
    inner = _stripped(scope.page, node)
    if inner is not None:
        rest, pick, complement = inner
        found = _probability(scope, rest, kind, line, lookups)
        if found is None or (complement and kind != "sigmoid"):
            return None
        return _Probability(found.call, found.line, (*found.picks, *pick), found.complement != complement, found.name)
    if not isinstance(node, ast.Name) or not lookups:
        return None
    assigned = scope.assignment(node.id, line)
    if assigned is None:
        return None
    found = _probability(scope, assigned.value, kind, assigned.lineno, lookups - 1)
    if found is None:
        return None
    whole = called(kind)(assigned.value) is not None
    return _Probability(found.call, found.line, found.picks, found.complement, node.id if whole else "")


def _stripped(page: Page, node: ast.expr) -> tuple[ast.expr, tuple[str, ...], bool] | None:
    """What an index, a bound, an added constant or a complement is taken of; the index as text; whether 1 - it."""
    if isinstance(node, ast.Subscript):
        return node.value, (f"[{page.source(node.slice)}]",), False
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        small = _is_small(node.right)
        return (node.left if small else node.right), (), False
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Sub) and _is_one(node.left):
        return node.right, (), True
    found = called(*_PICKING, *_BOUNDING)(node)
    if found is None or not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
        return None
    if node.func.attr in _BOUNDING:
        return found.operands[0], (), False
    if found.operands[0] is not node.func.value:
        return None
    arguments = ", ".join(page.source(a) for a in found.rest)
    return found.operands[0], (f".{node.func.attr}({arguments})",), False


def _is_one(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and node.value == 1


def _is_small(node: ast.expr) -> bool:
    name = node.attr if isinstance(node, ast.Attribute) else getattr(node, "id", "")
    return isinstance(node, ast.Constant) or "eps" in name.lower() or "tiny" in name.lower()


def _logarithm(page: Page, found: _Probability, kind: str) -> str:
    z = page.source(found.call.operands[0])
    rest = "".join(", " + page.source(a) for a in found.call.rest)
    if kind == "softmax":
        text = f"torch.log_softmax({z}{rest})"
    else:
        text = f"torch.nn.functional.logsigmoid({f'-({z})' if found.complement else z})"
    return text + "".join(found.picks)


def _in_two_steps(scope: Scope, node: ast.AST, found: _Probability, kind: str) -> Rewritten | None:
    """The logarithm first, the probability as its exp, and the old logarithm replaced by the first."""
    if not found.name or found.complement:
        return None
    log = f"log_{found.name}"
    assigned = scope.assignment(found.name, scope.line)
    if assigned is None:
        return None
    plain = _Probability(found.call, found.line)
    first = (assigned, f"{log} = {_logarithm(scope.page, plain, kind)}; {found.name} = {log}.exp()")
    return scope.page.replaced([first, (node, log + "".join(found.picks))])


# -- a quotient of exponentials ----------------------------------------------------------------------------------------


def softmax_of(text: str, line: int) -> Rewritten | None:
    """``exp(z) / exp(z).sum(d)`` as ``softmax(z, d)``, also where exp(z) has a name; the line is that of either."""
    scope = Scope.of(text, line)
    if scope is None:
        return None
    for node in ast.walk(scope.body):
        if not isinstance(node, ast.BinOp) or not isinstance(node.op, ast.Div):
            continue
        power, total = _exponential(scope, node.left, node.lineno), called("sum")(node.right)
        if power is None or total is None or ast.dump(total.operands[0]) != ast.dump(node.left):
            continue
        dim, z = _dim(scope.page, total), power.args[0] if power.args else None
        if z is None or not dim or line not in (node.lineno, power.lineno):
            continue
        if not scope.rebound(z, power.lineno, node.lineno):
            return scope.page.replaced([(node, f"torch.softmax({scope.page.source(z)}, {dim})")])
    return None


def _exponential(scope: Scope, node: ast.expr, line: int) -> ast.Call | None:
    """The call of exp that an expression is, or that its name was assigned above a line."""
    if isinstance(node, ast.Name):
        assigned = scope.assignment(node.id, line)
        node = assigned.value if assigned is not None else node
    return node if isinstance(node, ast.Call) and called("exp")(node) is not None else None


def _dim(page: Page, total: Found) -> str:
    for argument in total.rest:
        if isinstance(argument, ast.keyword):
            if argument.arg in ("dim", "axis"):
                return page.source(argument.value)
        else:
            return page.source(argument)
    return ""


# -- a mask after the fact ---------------------------------------------------------------------------------------------


def double_where(text: str, line: int, spellings: Sequence[Spelling], which: int, benign: str) -> Rewritten | None:
    """``where(mask, f(x), 0)`` with the mask on the argument, too: ``where(mask, f(where(mask, x, benign)), 0)``.

    which: the operand of f that is bad. The mask may stand around the line's own call, or, on a line below it, around
    the name that the result was assigned; ``masked_fill`` counts as well. None where no mask is found, or where it is
    made only after the line.
    """
    scope = Scope.of(text, line)
    if scope is None:
        return None
    page, changes = scope.page, []
    for node in scope.on_line():
        found = next((f for s in spellings if (f := s(node)) is not None), None)
        if found is None or which >= len(found.operands):
            continue
        mask = next(_masks(scope, node), None)
        if mask is None:
            continue
        operand, (condition, keeps) = found.operands[which], mask
        x = page.source(operand)
        inner = f"{condition}, {x}, {benign}" if keeps else f"{condition}, {benign}, {x}"
        changes.append((operand, f"torch.where({inner})"))
    return page.replaced(changes[:1]) if changes else None


def _masks(scope: Scope, node: ast.AST) -> Iterator[tuple[str, bool]]:
    """(condition, whether it is true where the result is kept) of the masks put on the result of an expression."""
    for outer in scope.on_line():
        if outer is not node:
            yield from _mask(scope.page, outer, lambda part: any(n is node for n in ast.walk(part)))
    holder = next(
        (n for n in ast.walk(scope.body) if isinstance(n, ast.Assign) and any(m is node for m in ast.walk(n))), None
    )
    if holder is None or not isinstance(holder.targets[0], ast.Name):
        return
    name = holder.targets[0].id
    for later in ast.walk(scope.body):
        if getattr(later, "lineno", 0) <= scope.line or not isinstance(later, ast.Call):
            continue
        for condition, keeps in _mask(scope.page, later, lambda part: isinstance(part, ast.Name) and part.id == name):
            if not scope.rebound(ast.parse(condition), scope.line, later.lineno):
                yield condition, keeps


def _mask(page: Page, node: ast.AST, holds: object) -> Iterator[tuple[str, bool]]:
    assert callable(holds)
    found = called("where", arity=3)(node)
    if found is not None:
        condition, kept, other = found.operands
        if holds(kept) or holds(other):
            yield page.source(condition), bool(holds(kept))
    filled = called("masked_fill", arity=2)(node)
    if filled is not None and holds(filled.operands[0]):
        yield page.source(filled.operands[1]), False


def finite_mask(text: str, line: int) -> Rewritten | None:
    """``masked_fill(mask, float("-inf"))`` with the dtype's lowest number; the last one on the line or above it."""
    scope = Scope.of(text, line)
    if scope is None:
        return None
    found: list[tuple[ast.expr, str]] = []
    for node in sorted((n for n in ast.walk(scope.body) if isinstance(n, ast.Call)), key=lambda n: n.lineno):
        fill = called("masked_fill", "masked_fill_", arity=3)(node)
        if fill is not None and node.lineno <= line and _is_minus_infinity(fill.operands[2]):
            x = scope.page.source(fill.operands[0])
            found.append((fill.operands[2], f"torch.finfo({x}.dtype).min" if _is_plain(fill.operands[0]) else ""))
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


# -- the program's own update rule, and its own backward ---------------------------------------------------------------


def corrections(text: str, line: int) -> Rewritten | None:
    """Every ``x / (1 - beta ** count)`` in the function around a line, with 1 in place of a divisor that is 0."""
    scope = Scope.of(text, line)
    if scope is None:
        return None
    found = [n for n in ast.walk(scope.body) if isinstance(n, ast.BinOp) and isinstance(n.op, ast.Div)]
    divisors = [n.right for n in found if _is_correction(n.right) or n.lineno == line]
    outer = [n for n in divisors if not any(n is not m and n in ast.walk(m) for m in divisors)]
    return scope.page.replaced([(n, f"{scope.page.source(n)} or 1.0") for n in outer]) if outer else None


def _is_correction(node: ast.expr) -> bool:
    if not isinstance(node, ast.BinOp) or not isinstance(node.op, ast.Sub) or not _is_one(node.left):
        return False
    return isinstance(node.right, ast.BinOp) and isinstance(node.right.op, ast.Pow)


def backward_lines(text: str, name: str) -> range:
    """The lines of the ``backward`` of an autograd.Function; empty where the text has none."""
    page = Page.of(text)
    classes = [n for n in ast.walk(page.tree) if isinstance(n, ast.ClassDef) and n.name == name] if page else []
    for function in (n for c in classes for n in c.body if isinstance(n, ast.FunctionDef) and n.name == "backward"):
        return range(function.lineno, (function.end_lineno or function.lineno) + 1)
    return range(0)
