"""Rewritings that look at more than one expression: what a name was assigned, what stands around a
call."""

from __future__ import annotations

import ast
from dataclasses import dataclass

from nanlab.analysis.fixes._rewriting import Found, Page, Rewritten, called
from nanlab.analysis.fixes._scope import Scope

_PICKING = frozenset(
    "gather index_select squeeze flatten view reshape select unsqueeze diagonal take".split()
)
_BOUNDING = frozenset("clamp clamp_min clip float double".split())
MOST_LOOKUPS = 4


# -- the logarithm of a probability
# ------------------------------------------------------------


@dataclass(frozen=True)
class _Probability:
    """The expression of a softmax or sigmoid, and what was done to its result before the
    logarithm."""

    call: Found
    line: int  # where it stands
    picks: tuple[str, ...] = ()  # texts to put after it: "[rows, y]", ".gather(1, y)"
    complement: bool = False  # 1 - p
    name: str = ""  # that it was assigned to, if that is all of the assignment


def logarithm_of(text: str, line: int, kind: str) -> Rewritten | None:
    """``log(softmax(z))`` as ``log_softmax(z)``, ``log(sigmoid(z))`` as ``logsigmoid(z)``, on one
    line or on several.

    kind: "softmax" or "sigmoid". Of a name the logarithm is taken of what it was assigned last;
    what was added to the probability or bounded it falls away. None where the line has no such
    logarithm.
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
        return _Probability(
            found.call,
            found.line,
            (*found.picks, *pick),
            found.complement != complement,
            found.name,
        )
    if not isinstance(node, ast.Name) or not lookups:
        return None
    assigned = scope.assignment(node.id, line)
    if assigned is None:
        return None
    found = _probability(scope, assigned.value, kind, assigned.lineno, lookups - 1)
    if found is None:
        return None
    whole = called(kind)(assigned.value) is not None
    return _Probability(
        found.call, found.line, found.picks, found.complement, node.id if whole else ""
    )


def _stripped(page: Page, node: ast.expr) -> tuple[ast.expr, tuple[str, ...], bool] | None:
    """What an index, a bound, an added constant or a complement is taken of; the index as text;
    whether 1 - it."""
    if isinstance(node, ast.Subscript):
        return node.value, (f"[{page.source(node.slice)}]",), False
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        if not (_is_small(node.right) or _is_small(node.left)):
            return None  # the sum of two probabilities
        return (node.left if _is_small(node.right) else node.right), (), False
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Sub) and is_one(node.left):
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


def is_one(node: ast.expr) -> bool:
    """Whether an expression is the literal 1."""
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
    """The logarithm first, the probability as its exp, and the old logarithm replaced by the
    first."""
    if not found.name or found.complement:
        return None
    log = f"log_{found.name}"
    assigned = scope.assignment(found.name, scope.line)
    if assigned is None:
        return None
    plain = _Probability(found.call, found.line)
    first = (assigned, f"{log} = {_logarithm(scope.page, plain, kind)}; {found.name} = {log}.exp()")
    return scope.page.replaced([first, (node, log + "".join(found.picks))])


def loss_of_logits(text: str, line: int) -> Rewritten | None:
    """``binary_cross_entropy(sigmoid(z), t)`` as ``binary_cross_entropy_with_logits(z, t)``."""
    scope = Scope.of(text, line)
    if scope is None:
        return None
    for node in scope.on_line():
        loss = called("binary_cross_entropy", arity=2)(node)
        found = _probability(scope, loss.operands[0], "sigmoid", line) if loss is not None else None
        if loss is None or found is None or found.complement:
            continue
        z = found.call.operands[0]
        if found.line < line and scope.rebound(z, found.line, line):
            continue
        rest = "".join(", " + scope.page.source(a) for a in (*loss.operands[1:], *loss.rest))
        logits = scope.page.source(z) + "".join(found.picks)
        return scope.page.replaced(
            [(node, f"torch.nn.functional.binary_cross_entropy_with_logits({logits}{rest})")]
        )
    return None


# -- a quotient of exponentials
# ------------------------------------------------------------


def softmax_of(text: str, line: int) -> Rewritten | None:
    """``exp(z) / exp(z).sum(d)`` as ``softmax(z, d)``, also where exp(z) has a name; the line is
    that of either."""
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
    node = _resolved(scope, node, line)
    return node if isinstance(node, ast.Call) and called("exp")(node) is not None else None


def log_sum_exp_of(text: str, line: int) -> Rewritten | None:
    """``log(exp(z).sum(d))`` as ``logsumexp(z, d)``, also in steps with names; the line is that of
    the first or last.

    Of a mean the logarithm of the count is subtracted.
    """
    scope = Scope.of(text, line)
    if scope is None:
        return None
    for node in ast.walk(scope.body):
        outer = called("log")(node)
        if outer is None or not isinstance(node, ast.Call):
            continue
        total = _resolved(scope, outer.operands[0], node.lineno)
        summed, averaged = called("sum")(total), called("mean")(total)
        reduced = summed or averaged
        power = (
            _exponential(scope, reduced.operands[0], total.lineno) if reduced is not None else None
        )
        exponent = called("exp")(power) if power is not None else None
        if (
            reduced is None
            or power is None
            or exponent is None
            or line not in (node.lineno, power.lineno)
        ):
            continue
        if scope.rebound(exponent.operands[0], power.lineno, node.lineno):
            continue
        form = _log_sum_exp(scope.page, exponent.operands[0], reduced, averaged is not None)
        return scope.page.replaced([(node, form)]) if form else None
    return None


def _log_sum_exp(page: Page, z: ast.expr, reduced: Found, averaged: bool) -> str:
    """Its text; "" for a mean along a dimension that is not written as one."""
    x, rest, dim = (
        page.source(z),
        "".join(", " + page.source(a) for a in reduced.rest),
        _dim(page, reduced),
    )
    form = f"torch.logsumexp({x}{rest})" if rest else f"torch.logsumexp(({x}).flatten(), 0)"
    if not averaged:
        return form
    if rest and not dim:
        return ""
    count = f"({x}).shape[{dim}]" if rest else f"({x}).numel()"
    return f"({form} - torch.tensor(float({count})).log())"


# -- a mean, written as a sum over a count
# ------------------------------------------------------------


def mean_of(text: str, line: int, divided: bool) -> Rewritten | None:
    """``x.sum(d)`` as ``x.mean(d)``; ``x.sum(d) / x.shape[d]`` as the same.

    divided: the sums to be rewritten are divided by their count. None where some on the line are
    and others are not, or where the divisor is not surely the count.
    """
    scope = Scope.of(text, line)
    if scope is None:
        return None
    changes: list[tuple[ast.AST, str]] = []
    for node in scope.on_line():
        total = called("sum")(node)
        if total is None:
            continue
        quotient = next((n for n in scope.on_line() if _divides(n, node)), None)
        if divided != (quotient is not None):
            return None
        mean = scope.page.render(node, {node: total}, "{X}.mean({args})")
        if isinstance(quotient, ast.BinOp):
            if not _counts(scope.page, total, quotient.right):
                return None
            mean = scope.page.source(quotient.left).replace(scope.page.source(node), mean, 1)
        changes.append((quotient or node, mean))
    return scope.page.replaced(changes) if changes else None


def _divides(node: ast.AST, total: ast.AST) -> bool:
    """Whether an expression is a quotient of this sum, or of its negative."""
    if not isinstance(node, ast.BinOp) or not isinstance(node.op, ast.Div):
        return False
    return node.left is total or (isinstance(node.left, ast.UnaryOp) and node.left.operand is total)


def _counts(page: Page, total: Found, divisor: ast.expr) -> bool:
    """Whether a divisor is the number of what a sum adds up: ``x.shape[d]``, ``x.size(d)``,
    ``x.numel()``, ``len(x)``."""
    dim = _dim(page, total)
    text, x = page.source(divisor), page.source(total.operands[0])
    name = x.split(".")[0].split("(")[0]
    if not total.rest:
        return text == f"{x}.numel()"
    sizes = [
        f"{t}.{size}"
        for t in dict.fromkeys((x, name))
        for size in (f"shape[{dim}]", f"size({dim})")
    ]
    return bool(dim) and (text in sizes or (dim == "0" and text == f"len({x})"))


def _resolved(scope: Scope, node: ast.expr, line: int) -> ast.expr:
    """What a name was assigned above a line; other expressions as they are."""
    assigned = scope.assignment(node.id, line) if isinstance(node, ast.Name) else None
    return node if assigned is None else assigned.value


def _dim(page: Page, total: Found) -> str:
    for argument in total.rest:
        if isinstance(argument, ast.keyword):
            if argument.arg in ("dim", "axis"):
                return page.source(argument.value)
        else:
            return page.source(argument)
    return ""
