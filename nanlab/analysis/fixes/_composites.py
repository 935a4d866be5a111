"""Candidates that rewrite an operation together with those before it: the form that a chain of
operations has by itself."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from nanlab.analysis.fixes._candidate import Candidate, Form, default_eps, eps_for, number
from nanlab.analysis.fixes._elementwise import square_root
from nanlab.analysis.fixes._inlining import logarithm_of, loss_of_logits, softmax_of
from nanlab.analysis.fixes._masking import double_where
from nanlab.analysis.fixes._operation import Operation
from nanlab.analysis.fixes._quotients import QUOTIENT
from nanlab.analysis.fixes._rewriting import Spelling, called, power
from nanlab.analysis.fixes._upstream import Maker, first_of, logits, picked, softmax_dim

RECOVERED = "its logits recovered from the probabilities and the range that was recorded"


def composites(op: Operation) -> list[Candidate]:
    """What to write for the operation and its neighbours together; empty where no such form is
    known."""
    return [
        *_of_probabilities(op),
        *_of_loss(op),
        *_by_root(op),
        *_of_roots(op),
        *_of_exponentials(op),
        *_masked_before(op),
    ]


# -- the logarithm of a probability
# ------------------------------------------------------------


def _of_probabilities(op: Operation) -> list[Candidate]:
    """``log(softmax(z))``, ``log(sigmoid(z))``, ``log(1 - sigmoid(z))``."""
    chain = op.makers[0] if op.name == "log" and op.makers else ()
    maker = first_of(chain, "_softmax", "sigmoid", beside=("rsub",))
    if maker is None or not op.x.is_floating_point():
        return []
    complement = any(m.name == "rsub" for m in chain[: chain.index(maker)])
    if complement and maker.name != "sigmoid":
        return []
    return (
        _of_softmax(op, maker, chain)
        if maker.name == "_softmax"
        else _of_sigmoid(op, maker, complement)
    )


def _of_softmax(op: Operation, maker: Maker, chain: tuple[Maker, ...]) -> list[Candidate]:
    dim = None if picked(chain, maker) else softmax_dim(op.x)
    z = logits(op.x, maker, dim)
    if dim is None:  # single elements: each against the rest of its row
        stable: Callable[..., Tensor] = F.logsigmoid
        soft: Callable[..., Tensor] = torch.sigmoid
    else:
        stable, soft = partial(torch.log_softmax, dim=dim), partial(torch.softmax, dim=dim)
    fused = Candidate(
        f"log_softmax of the logits ({RECOVERED})",
        (),
        stable,
        lambda t: torch.log(soft(t)),
        snippet=(
            f"torch.log_softmax(z, dim)   # z: what the softmax at line {maker.line} is taken of"
        ),
        operands=(z,),
        rewriter=lambda text, line: logarithm_of(text, line, "softmax"),
    )
    return [fused, *_wide_probability(op, maker, z, soft, "softmax")]


def _of_sigmoid(op: Operation, maker: Maker, complement: bool) -> list[Candidate]:
    inner = logits(1 - op.x.double() if complement else op.x, maker, None)
    z = inner.to(op.dtype)
    sign = -1 if complement else 1

    def soft(t: Tensor) -> Tensor:
        return 1 - torch.sigmoid(t) if complement else torch.sigmoid(t)

    minus = "-" if complement else ""
    fused = Candidate(
        "logsigmoid of the logits, the logarithm in binary_cross_entropy_with_logits"
        f" ({RECOVERED})",
        (),
        lambda t: F.logsigmoid(sign * t),
        lambda t: torch.log(soft(t)),
        snippet=(
            f"torch.nn.functional.logsigmoid({minus}z)   # z: what the sigmoid at line {maker.line}"
            " is taken of; or binary_cross_entropy_with_logits(z, target)"
        ),
        operands=(z,),
        rewriter=lambda text, line: logarithm_of(text, line, "sigmoid"),
    )
    return [fused, *_wide_probability(op, maker, z, soft, "sigmoid")]


def _wide_probability(
    op: Operation, maker: Maker, z: Tensor, soft: Callable[..., Tensor], name: str
) -> list[Candidate]:
    """``.float()`` before the softmax or sigmoid, where it was in half precision."""
    if not op.low:
        return []
    text = f"torch.{name}({{X}}.float(){{rest}})"
    return [
        Candidate(
            f"the {name} in float32 ({RECOVERED})",
            (Form((called(name),), text),),
            lambda t: torch.log(soft(t.float())),
            lambda t: torch.log(soft(t)),
            snippet=f"torch.{name}(z.float())   # at line {maker.line}",
            operands=(z,),
            line=maker.line,
        )
    ]


def _of_loss(op: Operation) -> list[Candidate]:
    """``binary_cross_entropy(sigmoid(z), t)``."""
    maker = (
        first_of(op.makers[0], "sigmoid")
        if op.name == "binary_cross_entropy" and op.makers
        else None
    )
    if maker is None:
        return []
    p, target = op.operands
    reduction = op.options["reduction"]
    z = logits(p, maker, None)
    plain = partial(F.binary_cross_entropy, reduction=reduction)
    fused = Candidate(
        f"binary_cross_entropy_with_logits ({RECOVERED})",
        (),
        partial(F.binary_cross_entropy_with_logits, reduction=reduction),
        lambda t, y: plain(torch.sigmoid(t), y),
        snippet=(
            "torch.nn.functional.binary_cross_entropy_with_logits(z, target)   # z: of the sigmoid"
            f" at line {maker.line}"
        ),
        operands=(z, target),
        rewriter=loss_of_logits,
    )
    wide = Candidate(
        f"the sigmoid and the loss in float32 ({RECOVERED})",
        (),
        lambda t, y: plain(torch.sigmoid(t.float()), y.float()),
        lambda t, y: plain(torch.sigmoid(t), y),
        snippet=f"torch.sigmoid(z.float())   # at line {maker.line}, and target.float()",
        operands=(z, target),
    )
    return [fused, wide] if op.low else [fused]


# -- quotients whose divisor, or whose vectors, come out of a root
# -----------------------------------------------------


def _by_root(op: Operation) -> list[Candidate]:
    """``x / sqrt(q)`` at q = 0: an epsilon inside the root, wherever that stands."""
    if op.name not in ("div", "true_divide") or len(op.makers) < 2 or len(op.operands) < 2:
        return []
    x, y = op.operands[:2]
    twice = op.makers[1][:1] and op.makers[1][0].name == "mul" and op.makers[1][0].numbers == (2,)
    # 2 sqrt(q): its derivative in forward mode
    maker = first_of(op.makers[1][1:] if twice else op.makers[1], "sqrt")
    if (
        maker is None
        or not isinstance(x, Tensor)
        or not isinstance(y, Tensor)
        or not y.is_floating_point()
    ):
        return []
    square = y.detach().square()
    eps = eps_for(op, lambda a, q, e: a / torch.sqrt(q + e), *torch.broadcast_tensors(x, square))
    return [
        Candidate(
            f"an epsilon of {number(e)} under the root in the divisor",
            _root_forms(e),
            lambda a, q, e=e: a / torch.sqrt(q + e),
            lambda a, q: a / torch.sqrt(q),
            operands=(x, square),
            line=maker.line,
            frees=True,
        )
        for e in sorted({eps, default_eps(op.dtype)})
    ]


def _root_forms(eps: float) -> tuple[Form, ...]:
    return (Form((called("sqrt"), square_root), f"torch.sqrt({{X}} + {number(eps)})"),)


def _of_roots(op: Operation) -> list[Candidate]:
    """Vectors ``sqrt(p)`` of norm zero: an epsilon inside their roots."""
    if op.name not in ("div", "true_divide") or len(op.operands) < 2 or not op.makers:
        return []
    x, y = op.operands[:2]
    maker = first_of(op.makers[0], "sqrt")
    if (
        maker is None
        or not isinstance(x, Tensor)
        or not isinstance(y, Tensor)
        or y.dim() != x.dim()
    ):
        return []
    dim = next((d for d in reversed(range(x.dim())) if y.shape[d] == 1 or _constant(y, d)), None)
    if dim is None:
        return []
    eps = default_eps(op.dtype)

    def unit(p: Tensor, e: float = 0.0) -> Tensor:
        root = torch.sqrt(p + e)
        return torch.div(root, torch.linalg.vector_norm(root, dim=dim, keepdim=True))

    return [
        Candidate(
            f"an epsilon of {number(eps)} inside the roots",
            _root_forms(eps),
            lambda p: unit(p, eps),
            unit,
            operands=(x.detach().square(),),
            line=maker.line,
            frees=True,
        )
    ]


def _constant(y: Tensor, dim: int) -> bool:
    return bool(y.shape[dim]) and bool((y == y.narrow(dim, 0, 1)).all())


# -- quotients of exponentials
# ------------------------------------------------------------


def _of_exponentials(op: Operation) -> list[Candidate]:
    """``exp(z) / exp(z).sum(d)``, which is a softmax, and no exponential can be too large or too
    small in it."""
    if op.name == "exp":
        z = op.operands[0]
    elif op.name in ("div", "true_divide") and op.makers and isinstance(op.operands[0], Tensor):
        maker = first_of(op.makers[0], "exp")
        if maker is None:
            return []
        x = op.operands[0].detach().double()
        z = (
            torch.where(x > 0, x.clamp_min(1e-300).log(), maker.low)
            .clamp(maker.low, maker.high)
            .to(op.dtype)
        )
    else:
        return []
    if not z.dim():
        return []
    dim = z.dim() - 1 if op.name == "exp" else _summed(op)
    soft = Candidate(
        "softmax, which subtracts the largest exponent first",
        (),
        partial(torch.softmax, dim=dim),
        lambda t: torch.exp(t) / torch.exp(t).sum(dim, keepdim=True),
        operands=(z,),
        rewriter=softmax_of,
        only_spelled=True,
        frees=True,
    )
    return [soft]


def _summed(op: Operation) -> int:
    """The dimension along which the divisor is one number."""
    x, y = op.operands[:2]
    if not isinstance(y, Tensor) or y.dim() != x.dim():
        return int(x.dim()) - 1
    return next(
        (d for d in reversed(range(x.dim())) if y.shape[d] == 1 or _constant(y, d)),
        int(x.dim()) - 1,
    )


# -- a mask after the fact
# ------------------------------------------------------------

# operator -> spellings, the operand that is bad, and what it may be instead
_MASKABLE: dict[str, tuple[tuple[Spelling, ...], int, float]] = {
    "sqrt": ((called("sqrt"), square_root), 0, 1.0),
    **{name: ((called(name),), 0, 1.0) for name in ("rsqrt", "log", "log2", "log10", "reciprocal")},
    **{name: ((called(name),), 0, 0.0) for name in ("acos", "asin", "atanh", "exp", "log1p")},
    "acosh": ((called("acosh"),), 0, 2.0),
    "pow": ((power,), 0, 1.0),
    "div": (QUOTIENT, 1, 1.0),
    "linalg_vector_norm": ((called("norm", "vector_norm"),), 0, 1.0),
}


def _masked_before(op: Operation) -> list[Candidate]:
    """The program's own mask on the argument as well as on the result: the double where."""
    if op.name not in _MASKABLE or not op.backward:
        return []
    spellings, which, benign = _MASKABLE[op.name]
    tensors = op.operands
    if (
        which >= len(tensors)
        or not isinstance(tensors[which], Tensor)
        or not tensors[which].is_floating_point()
    ):
        return []
    kept = _kept(op, tensors[which])
    if kept is None:
        return []

    def run(*given: Any) -> Tensor:
        changed = list(given)
        changed[which] = torch.where(kept, given[which], benign)
        return op.plain(*changed)

    rewriter = partial(
        double_where, spellings=spellings, which=which, benign=f"{benign}", products=op.products
    )
    title = "the mask on the argument, too (the double where): what it hides is not computed"
    return [
        Candidate(title, (), run, operands=tuple(tensors), rewriter=rewriter, only_spelled=True)
    ]


def _kept(op: Operation, bad: Tensor) -> Tensor | None:
    """What the program's mask lets through: a gradient came in; where none was kept: the value and
    derivative are finite."""
    if op.gradient is not None:
        return op.gradient != 0 if op.gradient.shape == bad.shape else None
    with torch.enable_grad():
        leaf = bad.detach().clone().requires_grad_()
        at = next(i for i, t in enumerate(op.operands) if t is bad)
        value = op.plain(*op.operands[:at], leaf, *op.operands[at + 1 :])
        if value.shape != leaf.shape:
            return None
        (slope,) = torch.autograd.grad(value.sum(), leaf)
    kept = torch.isfinite(value.detach()) & torch.isfinite(slope)
    # else some gradient came to what is bad
    masked = op.unreached is not None and int((~kept).sum()) <= op.unreached
    return kept if masked else None
