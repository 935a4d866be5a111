"""Candidates for functions at the edge of their domain: roots, logarithms, inverse functions."""

from __future__ import annotations

import ast
from collections.abc import Callable
from math import inf
from operator import attrgetter
from typing import Any

import torch
from torch import Tensor

from nanlab import safe
from nanlab.analysis.fixes._candidate import (
    IN_FLOAT32,
    Candidate,
    Form,
    default_eps,
    eps_for,
    inside,
    number,
)
from nanlab.analysis.fixes._epsilons import epsilon_in_float32
from nanlab.analysis.fixes._operation import Operation
from nanlab.analysis.fixes._rewriting import Found, Spelling, called, power
from nanlab.operators import CARDS, card


def forms(spelling: Spelling | tuple[Spelling, ...], text: str) -> tuple[Form, ...]:
    """One form for one or several spellings."""
    return (Form(spelling if isinstance(spelling, tuple) else (spelling,), text),)


# -- one operand with a pole or a floor
# ------------------------------------------------------------


def square_root(node: ast.AST) -> Found | None:
    """``x ** 0.5``."""
    found = power(node)
    if (
        found is None
        or not isinstance(found.operands[1], ast.Constant)
        or found.operands[1].value != 0.5
    ):
        return None
    return Found(found.operands[:1])


def _bounded(above: bool) -> list[str]:
    """Operators whose domain has a lower bound alone, or one ``above`` as well."""
    return [
        one.name
        for one in CARDS.values()
        if one.domain[0] > -inf and (one.domain[1] < inf) == above
    ]


def _home(name: str) -> str:
    """Where a function stands: ``sqrt`` in torch, ``special_entr`` as ``special.entr``."""
    return f"special.{name.removeprefix('special_')}" if name.startswith("special_") else name


def _function(name: str) -> Callable[..., Tensor]:
    found: Callable[..., Tensor] = attrgetter(_home(name))(torch)
    return found


def floored(op: Operation) -> list[Candidate]:
    """Functions that fail at and below the lowest argument of their domain."""
    fn, name = _function(op.name), _home(op.name)
    bare = name.removeprefix("special.")
    low, safely = card(op.name).domain[0], getattr(safe, op.name, None)
    spelled: tuple[Spelling, ...] = (called(bare), *((square_root,) if op.name == "sqrt" else ()))
    eps = eps_for(op, lambda t, e: fn(t + e), op.x) if not op.x.is_complex() else 1e-6
    eps = inside(op, eps) if low else eps
    found = []
    if safely is not None and not op.x.is_complex():
        found.append(
            Candidate(
                f"nanlab.safe.{op.name}: finite value and gradient",
                forms(spelled, f"nanlab.safe.{op.name}({{x}})"),
                safely,
            )
        )
    title = f"an epsilon of {number(eps)} inside the {'root' if 'sqrt' in op.name else bare}"
    # the next batch may be lower by more than that
    if op.x.is_complex() or not bool((op.x < low).any()):
        found.append(
            Candidate(
                title, forms(spelled, f"torch.{name}({{X}} + {number(eps)})"), lambda t: fn(t + eps)
            )
        )
    if not op.x.is_complex():
        floor = number(eps) if not low else f"{low:.0f} + {number(eps)}"
        text = f"torch.{name}({{X}}.clamp_min({floor}))"
        found.append(
            Candidate(
                f"clamp the argument at {floor}",
                forms(spelled, text),
                lambda t: fn(t.clamp_min(low + eps)),
            )
        )
    if "sqrt" in op.name:
        outside = f"(torch.{name}({{x}}) + {number(eps)})"
        found.append(
            Candidate(
                "an epsilon after the root instead of inside",
                forms(spelled, outside),
                lambda t: fn(t) + eps,
            )
        )
    own = epsilon_in_float32(op, 0, spelled, f"torch.{name}({{KEPT}})", fn) if not low else []
    return found + own + in_float32(op, spelled, f"torch.{name}({{X}}.float())")


def in_float32(op: Operation, spelled: tuple[Spelling, ...], text: str) -> list[Candidate]:
    """The same in float32, where it was in half precision."""
    if not op.low:
        return []
    return [
        Candidate(
            IN_FLOAT32, forms(spelled, text), lambda *ts: op.plain(*[as_float32(t) for t in ts])
        )
    ]


def as_float32(t: Any) -> Any:
    return t.float() if isinstance(t, Tensor) and t.is_floating_point() else t


# -- inverse functions
# ------------------------------------------------------------


def inverse(op: Operation) -> list[Candidate]:
    """Functions whose domain has two edges: acos, asin, logit."""
    fn, name = _function(op.name), _home(op.name)
    low, high = card(op.name).domain
    spelled = (called(name.removeprefix("special.")),)

    # of logit, which stays in the line
    own = {"eps": op.options["eps"]} if op.options.get("eps") is not None else {}

    def clamped(t: Tensor, eps: float) -> Tensor:
        return fn(t.clamp(low + eps, high - eps), **own)

    eps = inside(op, eps_for(op, clamped, op.x))
    found = []
    safely = getattr(safe, op.name, None)
    if safely is not None:
        found.append(
            Candidate(
                f"nanlab.safe.{op.name}: finite value and gradient",
                forms(spelled, f"nanlab.safe.{op.name}({{x}})"),
                safely,
            )
        )
    lower = number(eps) if low == 0 else f"{low:g} + {number(eps)}"
    title = f"clamp the argument {number(eps)} inside its domain"
    text = f"torch.{name}({{X}}.clamp({lower}, {high:g} - {number(eps)}){{rest}})"
    found.append(Candidate(title, forms(spelled, text), lambda t: clamped(t, eps)))
    if bool(((op.x == low) | (op.x == high)).any()):
        text = f"torch.{name}({{X}}.clamp({low:.0f}, {high:.0f}){{rest}})"
        at_edge = lambda t: fn(t.clamp(low, high), **own)  # noqa: E731
        found.append(
            Candidate("clamp the argument to the edge itself", forms(spelled, text), at_edge)
        )
    return found + in_float32(op, spelled, f"torch.{name}({{X}}.float(){{rest}})")


def angles(op: Operation) -> list[Candidate]:
    """angle, atan2, hypot and abs of complex numbers next to the origin."""
    if op.name == "hypot":
        x, y = op.operands
        eps = eps_for(op, lambda a, b, e: torch.sqrt(a * a + b * b + e), x, y)
        text = f"torch.sqrt({{X}} ** 2 + {{Y}} ** 2 + {number(eps)})"
        run = lambda a, b: torch.sqrt(a**2 + b**2 + eps)  # noqa: E731
        return [
            Candidate(
                f"an epsilon of {number(eps)} inside the root",
                forms(called("hypot", arity=2), text),
                run,
            )
        ]
    if op.name == "atan2":
        text = "nanlab.safe.atan2({x}, {y})"
        return [
            Candidate(
                "nanlab.safe.atan2: finite value and gradient",
                forms(called("atan2", "arctan2", arity=2), text),
                safe.atan2,
            )
        ]
    spelled = called("angle")
    safely = Candidate(
        "the angle by nanlab.safe.atan2 of both parts",
        forms(spelled, "nanlab.safe.atan2({X}.imag, {X}.real)"),
        lambda z: safe.atan2(z.imag, z.real),
    )
    floor = Candidate(
        "an epsilon on the argument",
        forms(spelled, "torch.angle({X} + 1e-6)"),
        lambda z: torch.angle(z + 1e-6),
    )
    return [safely, floor] if op.x.is_complex() else []


def together(x: Tensor, y: Tensor) -> list[Tensor]:
    """Both in the shape that they broadcast to."""
    return list(torch.broadcast_tensors(x, y))


# -- products with a logarithm
# ------------------------------------------------------------


def xlogy(op: Operation) -> list[Candidate]:
    """x log y at y = 0."""
    spelled = called("xlogy", arity=2)
    x, y = op.operands
    eps = eps_for(op, lambda a, b, e: torch.xlogy(a, b + e), *together(x, y))
    return [
        Candidate(
            "nanlab.safe.xlogy: finite value and gradient",
            forms(spelled, "nanlab.safe.xlogy({x}, {y})"),
            safe.xlogy,
        ),
        Candidate(
            f"clamp the argument at {number(eps)}",
            forms(spelled, f"torch.xlogy({{x}}, {{Y}}.clamp_min({number(eps)}))"),
            lambda a, b: torch.xlogy(a, b.clamp_min(eps)),
        ),
    ]


def xlog1py(op: Operation) -> list[Candidate]:
    """x log(1 + y) at y = -1."""
    eps = max(default_eps(op.dtype), 1e-5)
    text = f"torch.special.xlog1py({{x}}, {{Y}}.clamp_min(-1 + {number(eps)}))"
    return [
        Candidate(
            f"clamp the argument at -1 + {number(eps)}",
            forms(called("xlog1py", arity=2), text),
            lambda a, b: op.plain(a, b.clamp_min(-1 + eps)),
        )
    ]


def polygamma(op: Operation) -> list[Candidate]:
    """A derivative of digamma at its pole."""
    eps = 1e-3 if op.dtype != torch.float64 else 1e-6
    return [
        Candidate(
            f"clamp the argument at {number(eps)}",
            forms(
                called("polygamma", arity=2),
                f"torch.polygamma({{x}}, {{Y}}.clamp_min({number(eps)}))",
            ),
            lambda n, t: op.plain(n, t.clamp_min(eps)),
        )
    ]


ELEMENTWISE: dict[str, Callable[[Operation], list[Candidate]]] = {
    **dict.fromkeys(_bounded(above=False), floored),
    **dict.fromkeys(_bounded(above=True), inverse),
    **dict.fromkeys(("angle", "atan2", "hypot"), angles),
    "xlogy": xlogy,
    "special_xlog1py": xlog1py,
    "polygamma": polygamma,
}
