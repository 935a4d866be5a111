"""Candidates for powers and exponentials: fractional powers at zero, and what grows beyond the
largest number."""

from __future__ import annotations

import ast
import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from nanlab import safe
from nanlab.analysis.fixes._candidate import Candidate, Form, eps_for, number
from nanlab.analysis.fixes._elementwise import forms, in_float32, square_root
from nanlab.analysis.fixes._inlining import log_sum_exp_of
from nanlab.analysis.fixes._operation import Operation
from nanlab.analysis.fixes._rewriting import Found, Spelling, called, power
from nanlab.analysis.fixes._trial import ceiling

EXP_BOUND = 20.0  # where softplus is linear in torch, too


def _power_of(p: Any) -> Spelling:
    """A power whose exponent, where it is written as a number, is this one."""

    def match(node: ast.AST) -> Found | None:
        found = power(node)
        if found is None or not isinstance(found.operands[1], ast.Constant):
            return found
        return found if not isinstance(p, Tensor) and found.operands[1].value == p else None

    return match


def powers(op: Operation) -> list[Candidate]:
    """A fractional or negative power at or below zero."""
    base, p = op.operands
    if not isinstance(base, Tensor):
        return _exponent_bounded(op, base) if isinstance(p, Tensor) and base > 1 else []
    if (
        not op.backward and not isinstance(p, Tensor) and p >= 1 and p == int(p)
    ):  # too large: nothing that lifts the base helps
        wide = in_float32(op, (_power_of(p),), "{X}.float() ** {Y}")
        return [_or_square(c, p) for c in (*wide, _bounded(op, p))]
    spelled = _power_of(p)
    if base.is_complex():  # no order, so nothing to clamp at
        return [_with_epsilon(spelled, 1e-6)]
    eps = (
        eps_for(op, lambda t, e: torch.pow(t.clamp_min(e), p), base)
        if not isinstance(p, Tensor)
        else 1e-6
    )
    text = f"{{X}}.clamp_min({number(eps)}) ** {{Y}}"
    found = [
        Candidate(
            "nanlab.safe.pow: finite value and gradient",
            forms(spelled, "nanlab.safe.pow({x}, {y})"),
            safe.pow,
        ),
        Candidate(
            f"clamp the base at {number(eps)}",
            forms(spelled, text),
            lambda t, q: t.clamp_min(eps) ** q,
        ),
        _with_epsilon(spelled, eps),
    ]
    if bool((base < 0).any()):
        found.append(_of_magnitude(spelled, eps))
    if _root_like(p):
        found.insert(
            0,
            Candidate(
                "nanlab.safe.sqrt: finite value and gradient",
                forms(square_root, "nanlab.safe.sqrt({x})"),
                lambda t, q: safe.sqrt(t),
                only_spelled=True,
            ),
        )
    return found + in_float32(op, (spelled,), "{X}.float() ** {Y}")


def _or_square(candidate: Candidate, p: float) -> Candidate:
    """The same for ``x.square()``, which is a power of 2 as well."""
    if p != 2:
        return candidate
    texts = (form.text.removesuffix(" ** {Y}") for form in candidate.forms)
    squares = (Form((called("square"),), f"{text}.square()") for text in texts)
    return replace(candidate, forms=(*candidate.forms, *squares))


def _of_magnitude(spelled: Spelling, eps: float) -> Candidate:
    """The same for an even exponent, which loses the sign as well."""
    shown = number(eps)
    return Candidate(
        f"the power of the magnitude, at least {shown}: an even power, or a fractional one",
        forms(spelled, f"{{X}}.abs().clamp_min({shown}) ** {{Y}}"),
        lambda t, q: t.abs().clamp_min(eps) ** q,
    )


def _with_epsilon(spelled: Spelling, eps: float) -> Candidate:
    return Candidate(
        f"an epsilon of {number(eps)} on the base",
        forms(spelled, f"({{X}} + {number(eps)}) ** {{Y}}"),
        lambda t, q: (t + eps) ** q,
    )


def _exponent_bounded(op: Operation, base: float) -> list[Candidate]:
    """A number to a power that is too large: ``10 ** x``."""
    limit = math.log(torch.finfo(op.dtype).max) / math.log(base)
    bound = math.floor(min(EXP_BOUND / math.log(base), limit / 2))
    return [
        Candidate(
            f"clamp the exponent at {bound}",
            forms(power, f"{{X}} ** {{Y}}.clamp(max={bound})"),
            lambda b, t: b ** t.clamp(max=bound),
        )
    ]


def _bounded(op: Operation, p: float) -> Candidate:
    """The base no larger than what has a power in the dtype, with room for its derivative."""
    bound = float(f"{(ceiling(op.dtype) / p) ** (1 / p):.1g}")
    return Candidate(
        f"clamp the base between -{number(bound)} and {number(bound)}",
        forms(_power_of(p), f"{{X}}.clamp(-{number(bound)}, {number(bound)}) ** {{Y}}"),
        lambda t, q: t.clamp(-bound, bound) ** q,
    )


def _root_like(p: Any) -> bool:
    return not isinstance(p, Tensor) and p == 0.5


def _log_of(*inner: str) -> Spelling:
    """``log(f(x))``."""

    def match(node: ast.AST) -> Found | None:
        outer = called("log")(node)
        return called(*inner)(outer.operands[0]) if outer is not None else None

    return match


def _log_one_plus_exp(node: ast.AST) -> Found | None:
    """``log(1 + exp(x))``, ``log1p(exp(x))``."""
    outer = called("log1p")(node)
    if outer is not None:
        return called("exp")(outer.operands[0])
    outer = called("log")(node)
    inside = outer.operands[0] if outer is not None else None
    if not isinstance(inside, ast.BinOp) or not isinstance(inside.op, ast.Add):
        return None
    one, other = (
        (inside.left, inside.right)
        if isinstance(inside.left, ast.Constant)
        else (inside.right, inside.left)
    )
    return called("exp")(other) if isinstance(one, ast.Constant) and one.value == 1 else None


def _log_of_exp_less_one(node: ast.AST) -> Found | None:
    """``log(expm1(x))``, ``log(exp(x) - 1)``."""
    outer = called("log")(node)
    inside = outer.operands[0] if outer is not None else None
    if isinstance(inside, ast.BinOp) and isinstance(inside.op, ast.Sub):
        one = inside.right
        return (
            called("exp")(inside.left) if isinstance(one, ast.Constant) and one.value == 1 else None
        )
    return called("expm1")(inside) if inside is not None else None


# Logarithms of exponentials, which have a form that does not overflow.
_LOGARITHMS = (
    Candidate(
        "softplus, which is log(1 + exp(x)) for every x",
        forms(_log_one_plus_exp, "torch.nn.functional.softplus({x})"),
        torch.nn.functional.softplus,
        lambda t: torch.log1p(torch.exp(t)),
        only_spelled=True,
    ),
    Candidate(
        "|x| + softplus(-2|x|) - log 2, which is log cosh x for every x",
        forms(
            _log_of("cosh"),
            f"({{X}}.abs() + torch.nn.functional.softplus(-2 * {{X}}.abs()) - {math.log(2):.10f})",
        ),
        lambda t: t.abs() + torch.nn.functional.softplus(-2 * t.abs()) - math.log(2),
        lambda t: torch.log(torch.cosh(t)),
        only_spelled=True,
    ),
    Candidate(
        "x + log(-expm1(-x)), the inverse of softplus, which is log(expm1(x)) for every x above 0",
        forms(_log_of_exp_less_one, "({X} + torch.log(-torch.expm1(-{X})))"),
        lambda t: t + torch.log(-torch.expm1(-t)),
        lambda t: torch.log(torch.expm1(t)),
        only_spelled=True,
    ),
    Candidate(
        "logsumexp, which subtracts the largest exponent first",
        (),
        lambda t: torch.logsumexp(t, -1),
        lambda t: torch.log(torch.exp(t).sum(-1)),
        only_spelled=True,
        rewriter=log_sum_exp_of,
    ),
)


def exponential(op: Operation) -> list[Candidate]:
    """exp, sinh, cosh, expm1 of a large argument."""
    spelled = (called(op.name),)
    if op.x.is_complex():
        return _complex_exponential(spelled) if op.name == "exp" else []
    limit = math.log(torch.finfo(op.dtype).max)
    x = op.x.double()
    healthy = x[x < limit / 2]
    top = float(healthy.max()) if healthy.numel() else 0.0
    bound = math.ceil(min(max(top, min(EXP_BOUND, limit / 2)), limit / 2))
    lower = "" if op.name in ("exp", "exp2", "expm1") else f"-{bound}, "
    text = f"torch.{op.name}({{X}}.clamp({lower or 'max='}{bound}))"
    low = -float(bound) if lower else None
    found = [
        *_LOGARITHMS,
        Candidate(
            f"clamp the argument at {bound}",
            forms(spelled, text),
            lambda t: op.plain(t.clamp(low, float(bound))),
        ),
    ]
    if op.name == "exp":
        found.append(
            Candidate(
                "nanlab.safe.exp: finite value and gradient",
                forms(spelled, "nanlab.safe.exp({x})"),
                safe.exp,
            )
        )
    return found + in_float32(op, spelled, f"torch.{op.name}({{X}}.float())")


def _complex_exponential(spelled: tuple[Spelling, ...]) -> list[Candidate]:
    """The magnitude of exp(z) is that of the exponential of its real part."""
    bound = int(EXP_BOUND)
    return [
        Candidate(
            f"clamp the real part of the argument at {bound}",
            forms(spelled, f"torch.exp(torch.complex({{X}}.real.clamp(max={bound}), {{X}}.imag))"),
            lambda z: torch.exp(torch.complex(z.real.clamp(max=EXP_BOUND), z.imag)),
        )
    ]


def bessel(op: Operation) -> list[Candidate]:
    """i0, which grows as exp: its logarithm by way of the scaled i0e."""
    return [
        Candidate(
            "log(i0e(x)) + |x|, which is log(i0(x)) for every x",
            forms(_log_of("i0"), "(torch.log(torch.special.i0e({x})) + {X}.abs())"),
            lambda t: torch.log(torch.special.i0e(t)) + t.abs(),
            lambda t: torch.log(torch.special.i0(t)),
            only_spelled=True,
        )
    ]


POWERS: dict[str, Callable[[Operation], list[Candidate]]] = {
    "pow": powers,
    "float_power": powers,
    **dict.fromkeys(("i0", "special_i0"), bessel),
    **dict.fromkeys(("exp", "exp2", "expm1", "sinh", "cosh"), exponential),
}
