"""A candidate: another way to write an operation, and the function that tries it."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from nanlab.analysis.epsilon import swept
from nanlab.analysis.fixes._operation import Operation
from nanlab.analysis.fixes._rewriting import Rewritten, Spelling
from nanlab.errors import NanlabError
from nanlab.formats import format_of

IN_FLOAT32 = "compute this operation in float32"
EPS_IN_FLOAT32 = "compute this operation in float32, from the epsilon on: float32 holds it"
MASK = 1e4  # a logit this far below the others is masked, in every dtype
MOST_TRIED = 2048  # elements on which an epsilon is advised
# of the sweep over powers of two: the result is told as a power of ten
_STRIDE, _LEAST = 3, 2.0**-160
# above the default of the dtype: of data without healthy elements every epsilon is harmless
MOST_STEPS = 100.0


@dataclass(frozen=True)
class Form:
    """What replaces an expression that has one of the spellings; a template, see
    :func:`rewrite`."""

    spellings: tuple[Spelling, ...]
    text: str


@dataclass(frozen=True)
class Candidate:
    """Another way to write an operation."""

    title: str
    forms: tuple[Form, ...]  # the first whose spelling the line has is taken
    # of the operation's operands; None: it cannot be tried on them
    run: Callable[..., Tensor] | None
    # what it is compared with, where that is more than the operation
    plain: Callable[..., Tensor] | None = None
    snippet: str = ""  # what to write where the line has none of the spellings; "": the first form
    only_spelled: bool = False  # of no use where the line does not have the spelling
    why: str = ""  # it cannot be tried
    # what it is run on, where that is not the operation's: rebuilt from its operands
    operands: tuple[Any, ...] = ()
    line: int = 0  # of the file, whose expressions are replaced; 0: the operation's own
    rewriter: Callable[[str, int], Rewritten | None] | None = (
        None  # of a file's text and the line, in place of the forms
    )
    at_source: bool = False  # it sets right what was made of the same number elsewhere, too
    frees: bool = False  # it sets right what stands before the operation, too


def default_eps(dtype: torch.dtype) -> float:
    """An epsilon whose square root and reciprocal the dtype holds with ease."""
    return {torch.float16: 1e-3, torch.bfloat16: 1e-5, torch.float64: 1e-12}.get(dtype, 1e-6)


def eps_for(op: Operation, fn: Callable[..., Tensor], *operands: Tensor) -> float:
    """The advised epsilon of ``fn(*operands, eps)`` as a power of ten; a default of the dtype where
    none is advised."""
    try:
        advice = swept(fn, [_thinned(t) for t in operands], op.dtype, stride=_STRIDE, least=_LEAST)
    except (NanlabError, RuntimeError):
        return default_eps(op.dtype)
    eps = advice.recommended
    if eps is None or eps < format_of(op.dtype).smallest_subnormal:
        return default_eps(op.dtype)
    return min(float(f"1e{math.floor(math.log10(eps))}"), MOST_STEPS * default_eps(op.dtype))


def inside(op: Operation, eps: float) -> float:
    """An epsilon that leads away from an edge at 1, where the dtype has no smaller steps than its
    ulp."""
    return max(eps, default_eps(op.dtype)) if op.dtype != torch.bfloat16 else max(eps, 1e-2)


def _thinned(t: Tensor) -> Tensor:
    """Its smallest elements and a sample of the others."""
    flat = t.detach().flatten()
    if flat.numel() <= MOST_TRIED:
        return t.detach()
    order = flat.abs().argsort()
    rest = order[64:]
    return flat[torch.cat([order[:64], rest[:: max(1, len(rest) // MOST_TRIED)]])]


def number(value: float) -> str:
    """A number as one types it: ``1e-6``."""
    text = f"{value:.0e}" if value < 1e-2 else f"{value:.6g}"
    return text.replace("e-0", "e-").replace("e+0", "e").replace("e+", "e")
