"""Logarithms, exponential and entropy."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from nanlab.safe._guard import guard, pair
from nanlab.safe._operands import Dims, Number, as_float, below_one, drop, smallest


def _log(fn: Callable[[Tensor], Tensor], input: Tensor, low: float | None = None) -> Tensor:
    """A logarithm that is ``fn(low)`` at and below its pole; ``low`` None: the dtype's smallest
    positive number."""
    x = as_float(input, "input")
    floor = smallest(x.dtype) if low is None else low
    return guard(
        fn, [x], 1.0, outside=lambda value, t: fn(t.clamp(floor, torch.finfo(t.dtype).max))
    )


def log(input: Tensor) -> Tensor:
    """``torch.log``; at and below 0 the log of the dtype's smallest positive number, with
    derivative 0.

    So no positive number has a smaller log. At +inf: the log of the dtype's maximum, with
    derivative 0.
    Derivative: 0 wherever torch's, 1 / x, is not finite (most subnormals); the value is still
    torch's there.
    """
    return _log(torch.log, input)


def log2(input: Tensor) -> Tensor:
    """``torch.log2``, with value and derivative outside its domain as for ``log``."""
    return _log(torch.log2, input)


def log10(input: Tensor) -> Tensor:
    """``torch.log10``, with value and derivative outside its domain as for ``log``."""
    return _log(torch.log10, input)


def log1p(input: Tensor) -> Tensor:
    """``torch.log1p``; at and below -1 its value at the dtype's next number above -1, with
    derivative 0.

    At +inf: its value at the dtype's maximum, with derivative 0.
    """
    x = as_float(input, "input")
    return _log(torch.log1p, x, low=-below_one(x.dtype))


def logit(input: Tensor, eps: float | None = None) -> Tensor:
    """``torch.logit``; at and below 0, at and above 1: its value at the nearest number inside, with
    derivative 0.

    eps: as in torch, clamps the input into [eps, 1 - eps] first; one that is 0 in the dtype does no
    harm.
    Derivative: 0 wherever torch's, 1 / (x (1 - x)), is not finite.
    """
    x = as_float(input, "input")
    low, high = smallest(x.dtype), below_one(x.dtype)
    return guard(
        lambda t: torch.logit(t, eps),
        [x],
        0.5,
        outside=lambda value, t: torch.logit(t.clamp(low, high), eps),
    )


def exp(input: Tensor) -> Tensor:
    """``torch.exp``; where it overflows, the dtype's maximum, with derivative 0."""
    return guard(torch.exp, [as_float(input, "input")], 0.0)


def xlogy(input: Tensor | Number, other: Tensor | Number) -> Tensor:
    """``torch.xlogy``, x log(y) with 0 log(0) = 0.

    Value: where y <= 0, x times the log of the dtype's smallest positive number; what is too large
    for the dtype is the largest magnitude with its sign.
    Derivative: 0 in each operand for which torch's is not finite (in x: y <= 0; in y: y = 0); the
    other keeps its own.
    """
    if isinstance(other, (int, float)) and other <= 0:
        other = torch.full_like(as_float(input, "input"), other)
    return pair(
        torch.xlogy,
        input,
        other,
        ("input", "other"),
        outside=lambda value, x, y: torch.xlogy(
            x, y.clamp(smallest(y.dtype), torch.finfo(y.dtype).max)
        ),
    )


def entropy(p: Tensor, dim: Dims = -1, keepdim: bool = False) -> Tensor:
    """Shannon entropy in nats of probabilities along ``dim`` (None: all): the sum of
    ``torch.special.entr``.

    Value: a term is 0 at p = 0 and for p < 0; a sum too large for the dtype is its largest
    magnitude.
    Derivative: torch's, -log(p) - 1, where that is finite; 0 at p <= 0.
    """
    terms = guard(
        torch.special.entr,
        [as_float(p, "p")],
        1.0,
        outside=lambda value, t: torch.where(t < 0, 0.0, value),
    )
    total = guard(lambda t: t.sum(dim, keepdim=True), [terms], 0.0, dim=dim, reduces=True)
    return drop(total, dim, keepdim)
