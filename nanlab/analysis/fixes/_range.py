"""Candidates for results too large for their dtype, and for memory that nothing wrote."""

from __future__ import annotations

import ast
import math
from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

from nanlab.analysis.fixes._candidate import IN_FLOAT32, Candidate, Form, number
from nanlab.analysis.fixes._casts import cast, copied
from nanlab.analysis.fixes._elementwise import forms
from nanlab.analysis.fixes._inlining import mean_of
from nanlab.analysis.fixes._operation import Operation
from nanlab.analysis.fixes._rewriting import (
    Found,
    Page,
    Rewritten,
    Spelling,
    binary,
    called,
    is_number,
    rewrite,
)
from nanlab.analysis.fixes._trial import ceiling
from nanlab.analysis.fixes._upstream import first_of


def _function(*names: str) -> Spelling:
    """A call of one of these functions by its name, not of the method: the function and what it is
    called on."""

    def match(node: ast.AST) -> Found | None:
        found = called(*names)(node)
        if found is None or not isinstance(node, ast.Call) or found.operands[0] not in node.args:
            return None
        return Found((node.func, *found.operands), found.rest)

    return match


# how an operation is written, and the same in float32
_SPELLED: dict[str, tuple[tuple[Spelling, str], ...]] = {
    "mm": (
        (binary(ast.MatMult), "{X}.float() @ {Y}.float()"),
        (called("matmul", "mm", arity=2), "torch.matmul({X}.float(), {Y}.float())"),
        (called("einsum", arity=3), "torch.einsum({x}, {Y}.float(), {Z}.float(){rest})"),
    ),
    "bmm": (
        (binary(ast.MatMult), "{X}.float() @ {Y}.float()"),
        (called("matmul", "bmm", arity=2), "torch.matmul({X}.float(), {Y}.float())"),
        (called("einsum", arity=3), "torch.einsum({x}, {Y}.float(), {Z}.float(){rest})"),
    ),
    "mul": (
        (binary(ast.Mult), "{X}.float() * {Y}.float()"),
        (called("mul", arity=2), "torch.mul({X}.float(), {Y}.float())"),
    ),
    "add": ((binary(ast.Add), "{X}.float() + {Y}.float()"),),
    "sub": ((binary(ast.Sub), "{X}.float() - {Y}.float()"),),
    "linalg_vector_norm": (
        (_function("vector_norm", "norm"), "{x}({Y}.float(){rest})"),
        (called("norm"), "{X}.float().norm({args})"),
    ),
    **{
        name: (
            (
                called(name, arity=2),
                f"torch.nn.functional.{name}({{X}}.float(), {{Y}}.float(){{rest}})",
            ),
        )
        for name in ("mse_loss", "smooth_l1_loss", "huber_loss")
    },
}


_PRODUCTS: tuple[Spelling, ...] = (
    binary(ast.MatMult),
    called("matmul", "mm", "bmm", "mv", "dot", arity=2),
    called("einsum", arity=2),
)


def only_product(text: str, line: int, made: tuple[Form, ...]) -> Rewritten | None:
    """A line rewritten by the first form that it has; None where it writes products in two ways:
    which failed is not told."""
    page = Page.of(text)
    nodes = list(page.covering(line)) if page is not None else []
    if sum(any(spelled(node) is not None for node in nodes) for spelled in _PRODUCTS) > 1:
        return None
    found = (rewrite(text, line, form.spellings, form.text) for form in made)
    return next((line for line in found if line is not None), None)


# what the modules of torch run on their weights
_LAYERS = frozenset("mm addmm bmm baddbmm convolution".split())
_COSINES = "torch.nn.functional.normalize({x}, dim=-1) @ torch.nn.functional.normalize({y}, dim=-2)"


def _power_call(node: ast.AST) -> Found | None:
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Pow):
        return Found((node.left, node.right))
    return called("pow", arity=2)(node)


_SIGNS: dict[str, tuple[type[ast.operator], str]] = {
    "mul": (ast.Mult, "*"),
    "add": (ast.Add, "+"),
    "sub": (ast.Sub, "-"),
}


def _of_tensor(kind: type[ast.operator]) -> Spelling:
    """An infix operation whose first operand is no plain number."""

    def match(node: ast.AST) -> Found | None:
        found = binary(kind)(node)
        return None if found is None or is_number(found.operands[0]) else found

    return match


def _call_of(module: str) -> Spelling:
    """A call of the module at this path, or of one that holds it: ``self.blocks[1](x)`` for
    ``blocks.1.wo``."""
    names = [name for name in module.split(".") if not name.isdigit()]

    def match(node: ast.AST) -> Found | None:
        if not isinstance(node, ast.Call) or not node.args or isinstance(node.args[0], ast.Starred):
            return None
        called_by = node.func.value if isinstance(node.func, ast.Subscript) else node.func
        name = getattr(called_by, "attr", getattr(called_by, "id", ""))
        return (
            Found((node.func, node.args[0]), (*node.args[1:], *node.keywords))
            if name in names
            else None
        )

    return match


def wide(op: Operation) -> list[Candidate]:
    """The same in float32, and its factors scaled down: for what overflows half precision."""
    if not op.low:
        return []
    pairs = _SPELLED.get(op.name) or ((called(op.name), f"torch.{op.name}({{X}}.float(){{rest}})"),)
    # by a Python number
    if op.name in _SIGNS and any(not isinstance(t, Tensor) for t in op.operands[:2]):
        kind, sign = _SIGNS[op.name]
        pairs = (
            (_of_tensor(kind), f"{{X}}.float() {sign} {{Y}}"),
            (binary(kind), f"{{X}} {sign} {{Y}}.float()"),
        )
    if op.name == "pow":
        pairs = ((_power_call, "{X}.float() ** {Y}"),)
    if op.module and op.name in _LAYERS:
        pairs = ((_call_of(op.module), "{x}({Y}.float(){rest})"), *pairs)
    made = tuple(Form((spelling,), text) for spelling, text in pairs)
    rewriter = partial(only_product, made=made) if op.name in ("mm", "bmm") else None
    single = Candidate(IN_FLOAT32, made, _in_float32(op), rewriter=rewriter)
    found = [single]
    if op.name in ("mm", "bmm", "baddbmm", "addmm"):
        found.append(_normalised_factors(op))
    return found


_BOUNDED_MSE = (
    "torch.nn.functional.mse_loss({X}.clamp(-BOUND, BOUND), {Y}.clamp(-BOUND, BOUND){rest})"
)
# how a product is written, and with bounded factors
_FACTORS: dict[str, tuple[tuple[Spelling, str], ...]] = {
    "mul": ((binary(ast.Mult), "{X}.clamp(-BOUND, BOUND) * {Y}.clamp(-BOUND, BOUND)"),),
    "mm": ((binary(ast.MatMult), "{X}.clamp(-BOUND, BOUND) @ {Y}.clamp(-BOUND, BOUND)"),),
    "bmm": ((binary(ast.MatMult), "{X}.clamp(-BOUND, BOUND) @ {Y}.clamp(-BOUND, BOUND)"),),
    "mse_loss": ((called("mse_loss", arity=2), _BOUNDED_MSE),),
}


def bounded_factors(op: Operation) -> list[Candidate]:
    """A product of finite factors that no wider dtype at hand could hold: factors of bounded
    size."""
    tensors = [t for t in op.operands[:2] if isinstance(t, Tensor) and t.is_floating_point()]
    if (
        op.low
        or op.backward
        or len(tensors) < 2
        or not all(bool(torch.isfinite(t).all()) for t in tensors)
    ):
        return []
    terms = tensors[0].shape[-1] if op.name in ("mm", "bmm") else 4
    bound = 10.0 ** math.floor(math.log10(math.sqrt(ceiling(op.dtype) / max(terms, 1))))
    made = tuple(
        Form((spelling,), text.replace("BOUND", number(bound)))
        for spelling, text in _FACTORS[op.name]
    )
    return [
        Candidate(
            f"clamp both factors at {number(bound)}: their product fits; see why they grow",
            made,
            lambda a, b, *rest: op.plain(a.clamp(-bound, bound), b.clamp(-bound, bound), *rest),
            rewriter=partial(only_product, made=made) if op.name in ("mm", "bmm") else None,
        )
    ]


def bounded_run(op: Operation) -> list[Candidate]:
    """A product over a dimension that is too large: factors of bounded size."""
    if op.low or not bool(torch.isfinite(op.x).all()):
        return []
    count = op.x.shape[op.options["dim"]] if "dim" in op.options else op.x.numel()
    bound = float(f"{ceiling(op.dtype) ** (1 / max(count, 1)) * 0.5:.2g}")
    text = f"torch.{op.name}({{X}}.clamp(-{number(bound)}, {number(bound)}){{rest}})"
    return [
        Candidate(
            f"clamp the factors at {number(bound)}, or add up their logarithms",
            forms(called(op.name), text),
            lambda t: op.plain(t.clamp(-bound, bound)),
        )
    ]


def _in_float32(op: Operation) -> Callable[..., Tensor]:
    return lambda *ts: op.plain(
        *[t.float() if isinstance(t, Tensor) and t.is_floating_point() else t for t in ts]
    )


def _normalised_factors(op: Operation) -> Candidate:

    def run(*ts: Tensor) -> Tensor:
        x, y = ts[-2:]
        unit = torch.nn.functional.normalize(x.float(), dim=-1).to(x.dtype)
        return op.plain(
            *ts[:-2], unit, torch.nn.functional.normalize(y.float(), dim=-2).to(y.dtype)
        )

    made = forms((binary(ast.MatMult), called("matmul", "mm", "bmm", arity=2)), _COSINES)
    return Candidate(
        "normalise the factors: their product is a cosine, at most 1",
        made,
        run,
        rewriter=partial(only_product, made=made),
    )


def scaled_down(op: Operation) -> list[Candidate]:
    """A quotient by a number, in half precision: in float32, or of cosines instead of products."""
    x, y = op.operands[:2]
    if not op.low or isinstance(y, Tensor) or not isinstance(x, Tensor):
        return []
    found = [
        Candidate(
            IN_FLOAT32,
            (Form((binary(ast.Div), called("div", arity=2)), "{X}.float() / {Y}"),),
            lambda a, b: a.float() / b,
        )
    ]
    if op.makers and first_of(op.makers[0], "mm", "bmm", "addmm") is not None:
        found.append(
            Candidate(
                "normalise the factors of the product: a cosine is at most 1",
                (Form((binary(ast.MatMult), called("matmul", "mm", "bmm", arity=2)), _COSINES),),
                lambda a, b: op.plain(a / a.float().abs().max().clamp_min(1.0).to(a.dtype), b),
            )
        )
    return found


def long_norm(op: Operation) -> list[Candidate]:
    """The norm of gradients that are finite, and whose squares overflow float32."""
    if op.differentiates or op.dtype == torch.float64:
        return wide(op)
    return [
        Candidate(
            "the total norm in float64",
            (),
            lambda t: torch.linalg.vector_norm(t.double()),
            snippet=(
                "norm = torch.nn.utils.get_total_norm([p.grad.double() for p in parameters])\n"
                "torch.nn.utils.clip_grads_with_norm_(parameters, max_norm, norm)"
            ),
        )
    ]


def averaged(op: Operation) -> list[Candidate]:
    """A sum that is too large for half precision: its mean."""
    if not op.low or "dim" not in op.options:
        return wide(op)
    dim, keepdim = op.options["dim"], bool(op.options.get("keepdim", False))
    made = forms(called("sum"), "{X}.mean({args})")
    count = op.x.sum(dim, keepdim).numel() / max(op.x.numel(), 1)
    mean = Candidate(
        "the mean instead of the sum: smaller by the count, summed in float32; what follows must"
        " expect that",
        made,
        lambda t: t.mean(dim, keepdim),
        rewriter=partial(mean_of, divided=False),
    )
    quotient = Candidate(
        "the mean in the place of the sum and its division by the count: summed in float32",
        made,
        lambda t: t.mean(dim, keepdim),
        lambda t: op.plain(t) * count,
        only_spelled=True,
        rewriter=partial(mean_of, divided=True),
    )
    # with keepdim it is a norm, not a loss
    return [*wide(op), quotient] if keepdim else [*wide(op), quotient, mean]


RANGE: dict[str, Callable[[Operation], list[Candidate]]] = {
    **dict.fromkeys(
        (
            "addmm",
            "baddbmm",
            "mean",
            "square",
            "cumsum",
            "convolution",
            "smooth_l1_loss",
            "huber_loss",
            "dot",
            "mv",
        ),
        wide,
    ),
    "mse_loss": lambda op: [*wide(op), *bounded_factors(op)],
    **dict.fromkeys(("mm", "bmm"), lambda op: [*wide(op), *bounded_factors(op)]),
    **dict.fromkeys(("prod", "cumprod"), lambda op: [*wide(op), *bounded_run(op)]),
    "linalg_vector_norm": long_norm,
    "sum": averaged,
    **dict.fromkeys(("div", "true_divide"), scaled_down),
    "_to_copy": cast,
    "copy": copied,
}


def allocation(shape: tuple[int, ...]) -> tuple[Operation, list[Candidate]]:
    """Memory that was read before it was written, and the same filled with zeros."""
    pairs = (("empty", "torch.zeros({x}{rest})"), ("empty_like", "torch.zeros_like({x}{rest})"))
    made = tuple(Form((called(name),), text) for name, text in pairs)
    op = Operation("empty", (), lambda: torch.zeros(shape))
    return op, [Candidate("allocate zeros", made, lambda: torch.zeros(shape))]
