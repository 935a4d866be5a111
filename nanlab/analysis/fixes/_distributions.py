"""Candidates for the arguments of a distribution: a value at the edge of its support, a probability
of 0 or 1."""

from __future__ import annotations

import ast
from typing import Any

import torch
from torch import Tensor

from nanlab.analysis.fixes._candidate import Candidate, default_eps, number
from nanlab.analysis.fixes._elementwise import forms
from nanlab.analysis.fixes._operation import Operation
from nanlab.analysis.fixes._rewriting import Found, Spelling


def _method(name: str) -> Spelling:
    """A method of a distribution: ``distribution.log_prob(value)``."""

    def match(node: ast.AST) -> Found | None:
        if (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Attribute)
            and node.func.attr == name
            and len(node.args) == 1
        ):
            return Found((node.func.value, node.args[0]))
        return None

    return match


# and not the value itself
_MAKE_PARAMETERS = frozenset("mul sub div add softplus exp addmm relu elu square".split())


def support(op: Operation) -> list[Candidate]:
    """A value at the edge of a distribution's support, whose logarithm or power failed in
    ``log_prob``."""
    if op.name not in ("log", "xlogy", "log1p", "atanh") or op.backward or op.here:
        return []
    slot = 1 if op.name == "xlogy" else 0  # xlogy(concentration - 1, value)
    made = op.makers[slot] if slot < len(op.makers) else ()
    if made and made[0].name in _MAKE_PARAMETERS:
        return []
    eps = default_eps(op.dtype)
    # of a share and what is left of it
    two_sided = op.name == "log1p" or any(m.name == "stack" for m in made)
    kept = f"clamp({number(eps)}, 1 - {number(eps)})" if two_sided else f"clamp_min({number(eps)})"
    # the inverse of a tanh
    kept = f"clamp(-1 + {number(eps)}, 1 - {number(eps)})" if op.name == "atanh" else kept
    text = f"{{X}}.log_prob({{Y}}.{kept})"

    def clamped(*ts: Any) -> Tensor:
        if op.name == "atanh":
            return op.plain(ts[0].clamp(-1 + eps, 1 - eps))
        last = ts[-1].clamp_min(-1 + eps if op.name == "log1p" else eps)
        return op.plain(*ts[:-1], last)

    return [
        Candidate(
            f"keep the value {number(eps)} inside the support",
            forms(_method("log_prob"), text),
            clamped,
            only_spelled=True,
        )
    ]


# What quantile functions are computed with, and where a probability between eps and 1 - eps keeps
# its argument.
_QUANTILES = {
    "erfinv": lambda t, eps: t.clamp(-1 + 2 * eps, 1 - 2 * eps),
    "special_ndtri": lambda t, eps: t.clamp(eps, 1 - eps),
    "logit": lambda t, eps: t.clamp(eps, 1 - eps),
    "log": lambda t, eps: t.clamp_min(eps),
    "log1p": lambda t, eps: t.clamp_min(-1 + eps),
}


def quantile(op: Operation) -> list[Candidate]:
    """A probability of 0 or 1, whose quantile ``icdf`` is infinite, or has an infinite
    derivative."""
    if op.name not in _QUANTILES or op.here:
        return []
    eps = max(default_eps(op.dtype), 2 * torch.finfo(op.dtype).eps)
    inside = _QUANTILES[op.name]
    return [
        Candidate(
            f"keep the probability {number(eps)} away from 0 and 1",
            forms(_method("icdf"), f"{{X}}.icdf({{Y}}.clamp({number(eps)}, 1 - {number(eps)}))"),
            lambda t: op.plain(inside(t, eps)),
            only_spelled=True,
        )
    ]
