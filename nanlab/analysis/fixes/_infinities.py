"""Candidates for infinities that meet a number, and for masks that become infinite."""

from __future__ import annotations

import ast
import math
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor

from nanlab import safe
from nanlab.analysis.fixes._candidate import MASK, Candidate, Form, number
from nanlab.analysis.fixes._elementwise import forms
from nanlab.analysis.fixes._masking import masked_divisors
from nanlab.analysis.fixes._operation import Operation
from nanlab.analysis.fixes._quotients import QUOTIENT
from nanlab.analysis.fixes._range import bounded_factors, only_product, wide
from nanlab.analysis.fixes._rewriting import Found, Spelling, binary, called, is_number
from nanlab.analysis.fixes._trial import ceiling


def product(op: Operation) -> list[Candidate]:
    """0 times infinity."""
    x, y = op.operands
    if isinstance(x, Tensor) and isinstance(y, float) and math.isinf(y):
        return _mask_times(op, x, y)
    if not isinstance(x, Tensor) or not isinstance(y, Tensor):
        return wide(op)
    if not bool(torch.isinf(y).any() or torch.isinf(x).any()):
        return [*wide(op), *bounded_factors(op)]
    spelled = (binary(ast.Mult), called("mul", "multiply", arity=2))
    second = bool(torch.isinf(y).any())
    text = (
        "{X} * {Y}.masked_fill({X} == 0, 0.0)" if second else "{X}.masked_fill({Y} == 0, 0.0) * {Y}"
    )
    bound = MASK if ceiling(op.dtype) > MASK else 1e3
    shown = f"clamp(-{bound:.0f}, {bound:.0f})"
    low = f"{{X}} * {{Y}}.{shown}" if second else f"{{X}}.{shown} * {{Y}}"

    def filled(a: Tensor, b: Tensor) -> Tensor:
        return a * b.masked_fill(a == 0, 0.0) if second else a.masked_fill(b == 0, 0.0) * b

    def bounded(a: Tensor, b: Tensor) -> Tensor:
        return a * b.clamp(-bound, bound) if second else a.clamp(-bound, bound) * b

    computed = any(m.born for made in op.makers for m in made)  # and no mask that the program wrote
    finite = (
        f"clamp the infinite factor at {bound:.0f}"
        if computed
        else f"a finite mask of {-bound:.0f} instead of -inf"
    )
    return [
        Candidate(
            "set the infinite factor to 0 where the other is 0, before they meet",
            forms(spelled, text),
            filled,
        ),
        Candidate(finite, forms(spelled, low), bounded),
    ]


def _mask_times(op: Operation, mask: Tensor, infinity: float) -> list[Candidate]:
    """A mask of zeros and ones multiplied with an infinity."""
    bound = math.copysign(MASK if ceiling(op.dtype) > MASK else 1e3, infinity)
    return [
        Candidate(
            f"a finite number, {bound:.0f}, in the place of the infinity",
            (Form((_by_infinity,), f"{{X}} * {bound:.0f}"),),
            lambda m, _: m * bound,
        ),
        Candidate(
            "the infinity only where the mask is not 0",
            (Form((_by_infinity,), "torch.where({X} != 0, {y}, 0.0)"),),
            lambda m, y: torch.where(m != 0, y, 0.0),
        ),
    ]


def _by_infinity(node: ast.AST) -> Found | None:
    """``mask * float("-inf")``, either way round: the mask and the infinity."""
    if not isinstance(node, ast.BinOp) or not isinstance(node.op, ast.Mult):
        return None
    for mask, other in ((node.left, node.right), (node.right, node.left)):
        if "inf" in ast.unparse(other).lower():
            return Found((mask, other))
    return None


_DIVIDE = ("div", "reciprocal")


def of_quotients(op: Operation) -> list[Candidate]:
    """``(1 / y) * x`` under the program's own mask, where y is 0: the mask on the divisors, too."""
    spoilt = [
        slot
        for slot, t in enumerate(op.operands)
        if isinstance(t, Tensor) and not bool(torch.isfinite(t).all())
    ]
    made = [
        next((m for m in op.makers[slot] if m.born), None) if slot < len(op.makers) else None
        for slot in spoilt
    ]
    if (
        not op.backward
        or not made
        or any(m is None or m.line != op.line or m.name not in _DIVIDE for m in made)
    ):
        return []
    kept = torch.isfinite(op.plain(*op.operands))

    def run(*ts: Tensor) -> Tensor:
        return op.plain(*(torch.where(kept, t, 1.0) for t in ts))

    return [
        Candidate(
            "the mask on what is divided by, too (the double where): what it hides is not computed",
            (),
            run,
            rewriter=partial(
                masked_divisors,
                product=binary(ast.Mult),
                quotients=(*QUOTIENT, called("reciprocal")),
            ),
            only_spelled=True,
            frees=True,
        )
    ]


def _times_logarithm(node: ast.AST) -> Found | None:
    """``x * log(y)``, ``log(y) * x``."""
    if not isinstance(node, ast.BinOp) or not isinstance(node.op, ast.Mult):
        return None
    for factor, other in ((node.right, node.left), (node.left, node.right)):
        logarithm = called("log")(factor)
        if logarithm is not None:
            return Found((other, logarithm.operands[0]))
    return None


def of_logarithm(op: Operation) -> list[Candidate]:
    """``p * log(p)`` where p is 0: the logarithm is infinite, and so is its derivative."""
    logs = [slot for slot, made in enumerate(op.makers) if made and made[0].name == "log"]
    if not logs or op.dtype.is_complex:
        return []
    x, y = op.operands[1 - logs[0]], torch.exp(op.operands[logs[0]])
    return [
        Candidate(
            "nanlab.safe.xlogy: 0 where the factor is 0, and a finite gradient",
            forms(_times_logarithm, "nanlab.safe.xlogy({x}, {y})"),
            safe.xlogy,
            lambda a, b: a * torch.log(b),
            only_spelled=True,
            operands=(x, y),
            frees=True,
        )
    ]


def difference(op: Operation) -> list[Candidate]:
    """Infinity minus infinity, and mask constants that overflow when they are added."""
    operands = [t for t in op.operands[:2] if isinstance(t, Tensor)]
    infinite = any(bool(torch.isinf(t).any()) for t in operands)
    kind: type[ast.operator] = ast.Add if op.name == "add" else ast.Sub
    sign = "+" if op.name == "add" else "-"
    spelled = (binary(kind), called(op.name, arity=2))
    if infinite and len(operands) == 2:
        text = f"{{X}}.clamp(-{MASK:.0f}, {MASK:.0f}) {sign} {{Y}}.clamp(-{MASK:.0f}, {MASK:.0f})"
        run = lambda a, b, *r: op.plain(a.clamp(-MASK, MASK), b.clamp(-MASK, MASK), *r)  # noqa: E731
        return [
            Candidate(
                f"a finite mask of {-MASK:.0f} instead of -inf, in both", forms(spelled, text), run
            )
        ]
    if not operands or infinite:
        return []
    if bool(torch.isposinf(op.plain(*op.operands)).any()):  # what grew upwards is no mask
        return wide(op)
    floor = min(MASK, torch.finfo(op.dtype).max / 8)
    text = f"({{X}} {sign} {{Y}}).clamp_min(-{floor:.0f})"
    run = lambda *ts: op.plain(*ts).clamp_min(-floor)  # noqa: E731
    return [
        *wide(op),
        Candidate(f"bound the sum of the masks at {-floor:.0f}", forms(spelled, text), run),
    ]


def _unfilled(t: Any) -> Any:
    """A tensor with 0 in the place of its infinities."""
    return t.masked_fill(t.isinf(), 0.0) if isinstance(t, Tensor) and t.is_floating_point() else t


def of_module(name: str) -> Spelling:
    """The call of a module by the last part of its name: ``self.head(x)`` of ``net.head``."""
    last = name.rsplit(".", 1)[-1]

    def match(node: ast.AST) -> Found | None:
        if not isinstance(node, ast.Call) or not node.args or not last.isidentifier():
            return None
        called_by = (
            node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
        )
        return (
            Found((node.func, node.args[0]), (*node.args[1:], *node.keywords))
            if called_by == last
            else None
        )

    return match


def infinite_factor(op: Operation) -> list[Candidate]:
    """A product of matrices, or a convolution, of which one factor holds an infinity that the
    program wrote."""
    if op.backward or not any(
        isinstance(t, Tensor) and bool(torch.isinf(t).any()) for t in op.operands
    ):
        return []

    spoilt = [isinstance(t, Tensor) and bool(torch.isinf(t).any()) for t in op.operands[-2:]]

    def filled(name: str) -> str:
        return f"{{{name}}}.masked_fill({{{name}}}.isinf(), 0.0)"

    # matmul may hand its factors to mm and mv in turned order, to bmm never
    x, y = (
        filled(n) if s or op.name != "bmm" else f"{{{n}}}"
        for n, s in zip("XY", spoilt, strict=True)
    )

    made = (
        Form((binary(ast.MatMult),), f"{x} @ {y}"),
        Form((called("matmul", "mm", "bmm", "mv", "dot", arity=2),), f"torch.matmul({x}, {y})"),
        Form(
            (called("einsum", arity=3),),
            f"torch.einsum({{x}}, {filled('Y')}, {filled('Z')}{{rest}})",
        ),
        Form(
            (called("linear", arity=2),),
            f"torch.nn.functional.linear({filled('X')}, {{y}}{{rest}})",
        ),
        Form((of_module(op.module),), f"{{x}}({filled('Y')}{{rest}})"),
    )
    title = (
        "0 in the place of the infinities before the product: right where the other factor is 0, or"
        " nothing arrived"
    )
    return [
        Candidate(
            title,
            made,
            lambda *ts: op.plain(*(_unfilled(t) for t in ts)),
            rewriter=partial(only_product, made=made),
            snippet="x = x.masked_fill(x.isinf(), 0.0)   # before the product",
        )
    ]


def scaled_mask(op: Operation) -> list[Candidate]:
    """A finite number for "masked" that overflows when it is divided or multiplied by a number."""
    x, y = (*op.operands[:2], None, None)[:2]
    if (
        op.backward
        or not isinstance(x, Tensor)
        or isinstance(y, Tensor)
        or not y
        or not x.is_floating_point()
    ):
        return []
    if not _is_masked(x):
        return []
    sign, kind = ("/", ast.Div) if op.name == "div" else ("*", ast.Mult)
    floor = MASK if MASK / abs(y) < ceiling(x.dtype) and MASK * abs(y) < ceiling(x.dtype) else 1e3
    text = f"{{X}}.clamp_min(-{floor:.0f}) {sign} {{Y}}"
    return [
        Candidate(
            f"a finite mask of {-floor:.0f}, which can be scaled",
            forms((_by_number(kind), called(op.name, arity=2)), text),
            lambda a, b: op.plain(a.clamp_min(-floor), b),
        )
    ]


def _is_masked(x: Tensor) -> bool:
    """Whether all that is very low is one number: what grew step by step is not."""
    limit = torch.finfo(x.dtype).max / 8
    low = x[x <= -limit]
    return (
        bool(torch.isfinite(x).all())
        and low.numel() > 0
        and bool((low == low.min()).all() and x.max() < limit)
    )


def _by_number(kind: type[ast.operator]) -> Spelling:
    """A product (or quotient) of something and a number, the number last."""

    def match(node: ast.AST) -> Found | None:
        if not isinstance(node, ast.BinOp) or not isinstance(node.op, kind):
            return None
        turned = kind is ast.Mult and is_number(node.left)
        return Found((node.right, node.left) if turned else (node.left, node.right))

    return match


def impossible_both(op: Operation) -> list[Candidate]:
    """logaddexp of -inf and -inf, whose derivative is NaN."""
    lowest = -1e30 if ceiling(op.dtype) > 1e30 else -float(int(ceiling(op.dtype) / 1e3) * 1e3)
    low = f"-{number(-lowest)}"
    text = f"torch.logaddexp({{X}}.clamp_min({low}), {{Y}}.clamp_min({low}))"
    return [
        Candidate(
            f"{low} instead of -inf, in both",
            forms(called("logaddexp", "logaddexp2", arity=2), text),
            lambda a, b: op.plain(a.clamp_min(lowest), b.clamp_min(lowest)),
        )
    ]


INFINITIES: dict[str, Callable[[Operation], list[Candidate]]] = {
    "mul": lambda op: [*of_logarithm(op), *of_quotients(op), *scaled_mask(op), *product(op)],
    **dict.fromkeys(("div", "true_divide"), scaled_mask),
    **dict.fromkeys(("add", "sub"), difference),
    **dict.fromkeys(("mm", "bmm", "addmm", "baddbmm", "mv", "dot", "convolution"), infinite_factor),
    **dict.fromkeys(("logaddexp", "logaddexp2"), impossible_both),
}
