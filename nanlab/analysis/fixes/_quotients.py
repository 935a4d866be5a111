"""Candidates for quotients: by zero, by a tiny number, by a complex zero, by a Python number that
is 0."""

from __future__ import annotations

import ast
import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from nanlab import safe
from nanlab.analysis.fixes._arguments import keyword
from nanlab.analysis.fixes._candidate import (
    IN_FLOAT32,
    Candidate,
    Form,
    default_eps,
    eps_for,
    number,
)
from nanlab.analysis.fixes._elementwise import as_float32, forms, together
from nanlab.analysis.fixes._epsilons import epsilon_in_float32
from nanlab.analysis.fixes._operation import Operation
from nanlab.analysis.fixes._rewriting import Spelling, binary, called
from nanlab.analysis.fixes._trial import ceiling

QUOTIENT: tuple[Spelling, ...] = (binary(ast.Div), called("div", "divide", "true_divide", arity=2))


def quotient(op: Operation) -> list[Candidate]:
    """x / y and 1 / y."""
    if op.name in ("div", "true_divide", "divide"):
        return _guarded(op, op.operands[0], op.operands[1], own=())
    one = torch.ones_like(op.x)
    own = ((called("reciprocal"), "reciprocal"),)
    return [_bound_first(c, one) for c in _guarded(op, one, op.x, own)]


def _bound_first(candidate: Candidate, one: Tensor) -> Candidate:
    run = candidate.run
    return Candidate(
        candidate.title, candidate.forms, None if run is None else lambda y: run(one, y)
    )


# the text of a quotient, and of a reciprocal -> the forms of both
Written = Callable[[str, str], tuple[Form, ...]]


def _guarded(
    op: Operation, x: Any, y: Any, own: tuple[tuple[Spelling, str], ...]
) -> list[Candidate]:
    if not isinstance(y, Tensor):
        return _number_at_least(op, y)
    if y.is_complex():
        return _by_conjugate(op)

    def both(text: str, single: str) -> tuple[Form, ...]:
        written = f"{{X}}.div_({text[6:]})" if text.startswith("{X} / ") else f"{{X}}.copy_({text})"
        inplace = forms(called("div_", "divide_", arity=2), written)
        # it would overwrite what the safe division keeps for its backward
        if op.differentiates and "copy_" in written:
            inplace = ()
        return (*(Form((s,), single) for s, _ in own), *forms(QUOTIENT, text), *inplace)

    found = []
    if not (isinstance(x, Tensor) and x.is_complex()):
        text = both("nanlab.safe.div({x}, {y})", "nanlab.safe.reciprocal({x})")
        found.append(Candidate("nanlab.safe.div: 0 where the divisor is 0", text, safe.div))
    if not y.is_floating_point() or bool(
        (y == y.round()).all() and (y >= 0).all() and (y > 1).any()
    ):
        text = both("{X} / {Y}.clamp_min(1)", "{X}.clamp_min(1).reciprocal()")
        seen = forms(
            called("nanmean"), "({X}.nansum({args}) / (~{X}.isnan()).sum({args}).clamp_min(1))"
        )
        found.append(
            Candidate("count at least one", (*text, *seen), lambda a, b: a / b.clamp_min(1))
        )
    if y.is_floating_point():
        found += [*_with_epsilon(op, x, y, both), *_wider_quotient(op, both)]
    return found


def _with_epsilon(op: Operation, x: Any, y: Tensor, both: Written) -> list[Candidate]:
    """A divisor kept away from 0 by a number, in the ways that its sign and what follows allow."""
    numerator = x if isinstance(x, Tensor) and x.is_floating_point() else torch.ones_like(y)
    positive = bool((y >= 0).all())
    below = not positive and bool((y <= 0).all())
    away = -1.0 if below else 1.0
    eps = 1e-6
    if not numerator.is_complex():
        eps = eps_for(op, lambda a, b, e: a / (b + away * e), *together(numerator, y))
    if below:
        return _below_zero(eps, both)
    shown, found = number(eps), []
    if positive:
        text = both(f"{{X}} / {{Y}}.clamp_min({shown})", f"{{X}}.clamp_min({shown}).reciprocal()")
        found.append(
            Candidate(f"clamp the divisor at {shown}", text, lambda a, b: a / b.clamp_min(eps))
        )
    elif (
        y.dtype == torch.get_default_dtype()
    ):  # of Python numbers torch.where makes the default dtype
        found.append(_on_its_side(eps, both))
    text = both(f"{{X}} / ({{Y}} + {shown})", f"1 / ({{X}} + {shown})")
    found.append(
        Candidate(f"an epsilon of {shown} on the divisor", text, lambda a, b: a / (b + eps))
    )
    if op.divides and positive and not numerator.is_complex() and bool((numerator >= 0).all()):
        title = (
            f"an epsilon of {shown} on both: the ratio of nothing to nothing is 1, and has a"
            " logarithm"
        )
        text = both(f"({{X}} + {shown}) / ({{Y}} + {shown})", f"(1 + {shown}) / ({{X}} + {shown})")
        found.append(Candidate(title, text, lambda a, b: (a + eps) / (b + eps)))
    return found


def _on_its_side(eps: float, both: Written) -> Candidate:
    """A divisor of either sign: an epsilon of one sign would make a zero of its opposite."""
    away = f"torch.where({{Y}} >= 0, {number(eps)}, -{number(eps)})"
    text = both(f"{{X}} / ({{Y}} + {away})", f"1 / ({{X}} + {away.replace('{Y}', '{X}')})")
    return Candidate(
        f"an epsilon of {number(eps)} on the divisor, on the side of zero where it is",
        text,
        lambda a, b: a / (b + torch.where(b >= 0, eps, -eps)),
    )


def _below_zero(eps: float, both: Written) -> list[Candidate]:
    """A divisor that is nowhere positive kept away from 0, on its own side."""
    shown = number(eps)
    text = both(f"{{X}} / {{Y}}.clamp_max(-{shown})", f"{{X}}.clamp_max(-{shown}).reciprocal()")
    less = both(f"{{X}} / ({{Y}} - {shown})", f"1 / ({{X}} - {shown})")
    return [
        Candidate(f"clamp the divisor at -{shown}", text, lambda a, b: a / b.clamp_max(-eps)),
        Candidate(
            f"an epsilon of {shown} taken from the divisor, which is negative",
            less,
            lambda a, b: a / (b - eps),
        ),
    ]


def _wider_quotient(op: Operation, both: Written) -> list[Candidate]:
    if not op.low:
        return []
    above = "{X}" if op.name == "reciprocal" else "{X}.float()"  # a Python number
    text = both(f"{above} / {{Y}}.float()", "{X}.float().reciprocal()")
    own = epsilon_in_float32(op, 1, QUOTIENT, "{X} / {KEPT}", torch.div)
    if op.name == "reciprocal":
        own = epsilon_in_float32(
            replace(op, makers=((), *op.makers[:1])), 1, QUOTIENT, "{X} / {KEPT}", torch.div
        )
    return [*own, Candidate(IN_FLOAT32, text, lambda a, b: as_float32(a) / as_float32(b))]


def _by_conjugate(op: Operation) -> list[Candidate]:
    """A quotient of complex numbers whose divisor is 0."""
    eps = default_eps(op.dtype)

    def run(*ts: Any) -> Tensor:
        y = ts[-1]
        quotient: Tensor = (ts[0] if len(ts) > 1 else 1.0) * y.conj() / (y.abs().square() + eps)
        return quotient

    guarded = f"({{Y}}.abs().square() + {number(eps)})"
    made = (
        Form((called("reciprocal"),), f"{{X}}.conj() / {guarded.replace('Y', 'X')}"),
        *forms(QUOTIENT, f"{{X}} * {{Y}}.conj() / {guarded}"),
    )
    title = f"times the conjugate, over the squared magnitude plus {number(eps)}"
    return [Candidate(title, made, run)]


LEAST_TEMPERATURE = 0.01
_TEMPERATURES = ("tau", "temperature", "temp")


def _number_at_least(op: Operation, y: Any) -> list[Candidate]:
    """A quotient by a Python number that is 0: a count, or a temperature that was annealed too
    far."""
    if y != 0 or not op.differentiates:
        return []
    least = 1 if isinstance(y, int) else LEAST_TEMPERATURE
    named = tuple(Form((keyword(name),), f"{name}=max({{x}}, {least})") for name in _TEMPERATURES)
    made = (*named, *forms(QUOTIENT, f"{{X}} / max({{y}}, {least})"))
    return [
        Candidate(f"divide by at least {least}", made, lambda x, n: x / max(n, least)),
        Candidate(
            "nanlab.safe.div: 0 where the divisor is 0",
            forms(QUOTIENT, "nanlab.safe.div({x}, {y})"),
            safe.div,
        ),
    ]


def _least_divisor(factor: float, y: Tensor) -> float:
    """A divisor whose quotient, and the quotient's derivative, leave room for what follows; below
    the healthy ones."""
    least = math.sqrt(abs(factor) / ceiling(y.dtype))
    least = math.ceil(least * 100) / 100 if least > 0.01 else 10.0 ** math.ceil(math.log10(least))
    healthy = y.abs()[torch.isfinite(factor / y)]
    usual = float(healthy.min()) if healthy.numel() else 1.0
    return max(least, 10.0 ** math.floor(math.log10(min(usual, default_eps(y.dtype)))))


def of_reciprocal(op: Operation) -> list[Candidate]:
    """``2.0 / y``, computed as a product of 2.0 and 1 / y, that overflows because y is tiny."""
    made_by = op.makers[0][0].name if op.makers and op.makers[0] else ""
    factor = op.operands[1] if op.name == "mul" and len(op.operands) > 1 else None
    if (
        op.backward
        or made_by != "reciprocal"
        or isinstance(factor, Tensor)
        or not factor
        or op.x.is_complex()
    ):
        return []
    y = op.x.reciprocal()
    floor = max(_least_divisor(factor, y), eps_for(op, lambda b, e: factor / (b + e), y))
    title, guarded, guard = _guard(y, floor)

    def run(c: float, divisor: Tensor) -> Tensor:
        return c / guard(divisor)

    return [
        Candidate(
            title,
            forms(QUOTIENT, f"{{X}} / {guarded}"),
            run,
            lambda c, divisor: c / divisor,
            operands=(factor, y),
        )
    ]


def _guard(y: Tensor, floor: float) -> tuple[str, str, Callable[[Tensor], Tensor]]:
    """How a divisor is kept away from 0 on the side on which it is: title, text and function."""
    shown = number(floor)
    if bool((y >= 0).all()):
        return (
            f"clamp the divisor at {shown}",
            f"{{Y}}.clamp_min({shown})",
            lambda t: t.clamp_min(floor),
        )
    if bool((y <= 0).all()):
        return (
            f"clamp the divisor at -{shown}",
            f"{{Y}}.clamp_max(-{shown})",
            lambda t: t.clamp_max(-floor),
        )
    return f"an epsilon of {shown} on the divisor", f"({{Y}} + {shown})", lambda t: t + floor


def remainder(op: Operation) -> list[Candidate]:
    """A remainder by zero."""
    x, y = op.operands
    eps = eps_for(op, lambda a, b, e: torch.remainder(a, b.clamp_min(e)), *together(x, y))
    spelled = (called("remainder", "fmod", arity=2), binary(ast.Mod))
    text = f"torch.remainder({{x}}, {{Y}}.clamp_min({number(eps)}))"
    return [
        Candidate(
            f"clamp the divisor at {number(eps)}",
            forms(spelled, text),
            lambda a, b: torch.remainder(a, b.clamp_min(eps)),
        )
    ]


def added_quotient(op: Operation) -> list[Candidate]:
    """``a + b / c`` by torch.addcdiv, whose divisor is 0; an optimizer's own is left to its eps."""
    if op.backward or not op.differentiates or len(op.operands) < 3:
        return []
    eps = default_eps(op.dtype)
    text = f"torch.addcdiv({{x}}, {{y}}, {{Z}} + {number(eps)}{{rest}})"
    return [
        Candidate(
            f"an epsilon of {number(eps)} on the divisor",
            forms(called("addcdiv", arity=3), text),
            lambda a, b, c, *rest: op.plain(a, b, c + eps, *rest),
        )
    ]


QUOTIENTS: dict[str, Callable[[Operation], list[Candidate]]] = {
    **dict.fromkeys(("div", "true_divide", "divide", "reciprocal"), quotient),
    "addcdiv": added_quotient,
    "remainder": remainder,
    "fmod": remainder,
}
