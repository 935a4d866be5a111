"""Candidates for results too large for their dtype, for infinities that meet, and for memory and settings."""

from __future__ import annotations

import ast
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from nanlab.analysis.fixes._candidate import IN_FLOAT32, MASK, Candidate, Form
from nanlab.analysis.fixes._elementwise import forms
from nanlab.analysis.fixes._operation import Operation
from nanlab.analysis.fixes._rewriting import Found, Spelling, binary, called

_SPELLED: dict[str, tuple[tuple[Spelling, str], ...]] = {  # how an operation is written, and the same in float32
    "mm": (
        (binary(ast.MatMult), "{X}.float() @ {Y}.float()"),
        (called("matmul", "mm", arity=2), "torch.matmul({X}.float(), {Y}.float())"),
    ),
    "bmm": (
        (binary(ast.MatMult), "{X}.float() @ {Y}.float()"),
        (called("matmul", "bmm", arity=2), "torch.matmul({X}.float(), {Y}.float())"),
    ),
    "mul": (
        (binary(ast.Mult), "{X}.float() * {Y}.float()"),
        (called("mul", arity=2), "torch.mul({X}.float(), {Y}.float())"),
    ),
    "add": ((binary(ast.Add), "{X}.float() + {Y}.float()"),),
    "sub": ((binary(ast.Sub), "{X}.float() - {Y}.float()"),),
}


def _power_call(node: ast.AST) -> Found | None:
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Pow):
        return Found((node.left, node.right))
    return called("pow", arity=2)(node)


def wide(op: Operation) -> list[Candidate]:
    """The same in float32, and its factors scaled down: for what overflows half precision."""
    if not op.low:
        return []
    pairs = _SPELLED.get(op.name) or ((called(op.name), f"torch.{op.name}({{X}}.float(){{rest}})"),)
    if op.name == "pow":
        pairs = ((_power_call, "{X}.float() ** {Y}"),)
    made = tuple(Form((spelling,), text) for spelling, text in pairs)
    single = Candidate(IN_FLOAT32, made, _in_float32(op))
    found = [single]
    if op.name in ("mm", "bmm", "baddbmm", "addmm"):
        found.append(_normalised_factors(op))
    return found


def _in_float32(op: Operation) -> Callable[..., Tensor]:
    return lambda *ts: op.plain(*[t.float() if isinstance(t, Tensor) and t.is_floating_point() else t for t in ts])


def _normalised_factors(op: Operation) -> Candidate:
    text = "torch.nn.functional.normalize({x}, dim=-1) @ torch.nn.functional.normalize({y}, dim=-2)"

    def run(*ts: Tensor) -> Tensor:
        x, y = ts[-2:]
        unit = torch.nn.functional.normalize(x.float(), dim=-1).to(x.dtype)
        return op.plain(*ts[:-2], unit, torch.nn.functional.normalize(y.float(), dim=-2).to(y.dtype))

    return Candidate(
        "normalise the factors: their product is a cosine, at most 1",
        forms((binary(ast.MatMult), called("matmul", "mm", "bmm", arity=2)), text),
        run,
    )


def cast(op: Operation) -> list[Candidate]:
    """A cast to a dtype that cannot hold the value."""
    dtype = op.options.get("dtype")
    if not isinstance(dtype, torch.dtype) or not dtype.is_floating_point:
        return []
    limits = torch.finfo(dtype)
    x = op.x[op.x.abs() <= limits.max]
    bound = float(min(max(MASK, float(x.abs().max()) if x.numel() else 0.0), limits.max))
    clamp = f".clamp(-{bound:.0f}, {bound:.0f})"
    explicit = [Form((called("half"),), f"{{X}}{clamp}.half()"), Form((called("to"),), f"{{X}}{clamp}.to({{args}})")]
    name = str(dtype).removeprefix("torch.")
    return [
        Candidate(IN_FLOAT32, (), lambda t: t.float(), snippet="x.float()"),
        Candidate(
            f"clamp to what {name} holds before the cast", tuple(explicit), lambda t: op.plain(t.clamp(-bound, bound))
        ),
        Candidate(
            "bring the values into range before the cast",
            (),
            None,
            snippet="x / x.abs().max()",
            why="their scale is the program's",
        ),
    ]


# -- infinities --------------------------------------------------------------------------------------------------------


def product(op: Operation) -> list[Candidate]:
    """0 times infinity."""
    x, y = op.operands
    if not isinstance(x, Tensor) or not isinstance(y, Tensor):
        return wide(op)
    if not bool(torch.isinf(y).any() or torch.isinf(x).any()):
        return wide(op)
    spelled = (binary(ast.Mult), called("mul", "multiply", arity=2))
    second = bool(torch.isinf(y).any())
    text = "{X} * {Y}.masked_fill({X} == 0, 0.0)" if second else "{X}.masked_fill({Y} == 0, 0.0) * {Y}"
    low = f"{{X}} * {{Y}}.clamp(-{MASK:.0f}, {MASK:.0f})" if second else f"{{X}}.clamp(-{MASK:.0f}, {MASK:.0f}) * {{Y}}"

    def filled(a: Tensor, b: Tensor) -> Tensor:
        return a * b.masked_fill(a == 0, 0.0) if second else a.masked_fill(b == 0, 0.0) * b

    def bounded(a: Tensor, b: Tensor) -> Tensor:
        return a * b.clamp(-MASK, MASK) if second else a.clamp(-MASK, MASK) * b

    return [
        Candidate("set the infinite factor to 0 where the other is 0, before they meet", forms(spelled, text), filled),
        Candidate(f"a finite mask of {-MASK:.0f} instead of -inf", forms(spelled, low), bounded),
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
        return [Candidate(f"a finite mask of {-MASK:.0f} instead of -inf, in both", forms(spelled, text), run)]
    if not operands or infinite:
        return []
    largest = torch.finfo(op.dtype).max
    floor = min(MASK, largest / 8)
    text = f"({{X}} {sign} {{Y}}).clamp_min(-{floor:.0f})"
    return [
        *wide(op),
        Candidate(
            f"bound the sum of the masks at {-floor:.0f}",
            forms(spelled, text),
            lambda *ts: op.plain(*ts).clamp(-floor, floor),
        ),
    ]


RANGE: dict[str, Callable[[Operation], list[Candidate]]] = {
    **dict.fromkeys(
        (
            "mm",
            "bmm",
            "addmm",
            "baddbmm",
            "sum",
            "mean",
            "square",
            "prod",
            "cumsum",
            "mse_loss",
            "linalg_vector_norm",
            "convolution",
        ),
        wide,
    ),
    "_to_copy": cast,
    "mul": product,
    "add": difference,
    "sub": difference,
}


def allocation(shape: tuple[int, ...]) -> tuple[Operation, list[Candidate]]:
    """Memory that was read before it was written, and the same filled with zeros."""
    pairs = (("empty", "torch.zeros({x}{rest})"), ("empty_like", "torch.zeros_like({x}{rest})"))
    made = tuple(Form((called(name),), text) for name, text in pairs)
    op = Operation("empty", (), lambda: torch.zeros(shape))
    return op, [Candidate("allocate zeros", made, lambda: torch.zeros(shape))]


def optimizer_eps(op: Operation, eps: float) -> Candidate:
    """An update divided by the root of a second moment, with a larger epsilon."""

    def run(p: Tensor, m: Tensor, d: Tensor, *rest: Any) -> Tensor:
        before = torch.where(torch.isfinite(p), p, 0.0)  # where the update had already spoilt it
        return op.plain(before, m, d + eps, *rest)

    return Candidate(
        f"an optimizer eps of {eps:g}, which {str(op.dtype).removeprefix('torch.')} holds",
        (),
        run,
        snippet=f"torch.optim.Adam(parameters, lr=..., eps={eps:g})   # or float32 master weights",
    )
