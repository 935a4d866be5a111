"""Elementwise operators: quotients, roots, powers, logarithms, inverse and special functions."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Literal

import torch
from torch import Tensor

from nanlab.safe.operator import (
    Dims,
    Number,
    Outside,
    as_float,
    as_tensor,
    below_one,
    broadcast,
    drop,
    guard,
    pair,
    smallest,
)
from nanlab.safe.series import Series

# Division and reciprocal.


def div(
    input: Tensor | Number,
    other: Tensor | Number,
    *,
    rounding_mode: Literal["trunc", "floor"] | None = None,
) -> Tensor:
    """``torch.div``; 0 where the divisor is 0.

    Value: x / 0 is 0 for every x (the mean of nothing, the direction of nothing); a quotient too
    large for the dtype is the largest magnitude with its sign; inf / inf is 0.
    Derivative: 0 in each operand for which torch's is not finite; the other operand keeps its own.
    """
    if isinstance(other, (int, float)) and other == 0:
        other = torch.zeros_like(as_float(input, "input"))
    return pair(
        lambda a, b: torch.div(a, b, rounding_mode=rounding_mode),
        input,
        other,
        ("input", "other"),
        outside=lambda value, a, b: torch.where(b == 0, 0.0, value),
    )


def reciprocal(input: Tensor) -> Tensor:
    """``torch.reciprocal``; value 0 and derivative 0 at 0.

    Value: too large for the dtype (1 / a subnormal): the largest magnitude with its sign.
    Derivative: 0 wherever torch's, -1 / x**2, is not finite.
    """
    return _of_one(torch.reciprocal, input, lambda value, x: torch.where(x == 0, 0.0, value))


def _of_one(
    fn: Callable[[Tensor], Tensor], input: Tensor, outside: Outside | None, benign: float = 1.0
) -> Tensor:
    return guard(fn, [as_float(input, "input")], benign, outside=outside)


# Square roots and powers.


def sqrt(input: Tensor) -> Tensor:
    """``torch.sqrt``; value 0 and derivative 0 at and below 0.

    At +inf: value the dtype's maximum, derivative 0.
    """
    return _of_one(torch.sqrt, input, None)


def rsqrt(input: Tensor) -> Tensor:
    """``torch.rsqrt``; value 0 and derivative 0 at and below 0, as for ``reciprocal``.

    Derivative: 0 wherever torch's, -x**(-3/2) / 2, is not finite (tiny x); the value is still
    torch's there.
    """
    return _of_one(torch.rsqrt, input, lambda value, x: torch.where(x <= 0, 0.0, value))


def pow(input: Tensor | Number, exponent: Tensor | Number) -> Tensor:
    """``torch.pow``, for a tensor or a number in either place (one at least a tensor).

    Value: 0 ** negative is 0, as ``reciprocal(0)``; negative ** fraction is 0; a power too large
    for the dtype is the largest magnitude with its sign.
    Derivative: 0 in each operand for which torch's is not finite (0 ** p for p < 1); the other
    operand keeps its own. Second derivative: that in the exponent is 0 where the base is 0.
    """
    if isinstance(input, (int, float)) and input <= 0:
        input = torch.full_like(as_float(exponent, "exponent"), input)
    return pair(
        torch.pow,
        input,
        exponent,
        ("input", "exponent"),
        outside=lambda value, base, power: torch.where((base == 0) & (power < 0), 0.0, value),
        flat=lambda value, base, power: ((base == 0) & (power == 0), base == 0),
    )


# Logarithms, exponential and entropy.


def _within(
    fn: Callable[[Tensor], Tensor],
    input: Tensor,
    low: Callable[[torch.dtype], float] | float,
    high: float | None = None,
    benign: float = 1.0,
) -> Tensor:
    """A function, outside of an interval what it is at the edge; None: the largest number. low: may
    depend on the dtype."""
    x = as_float(input, "input")
    top = torch.finfo(x.dtype).max if high is None else high
    floor = low(x.dtype) if callable(low) else low
    return guard(fn, [x], benign, outside=lambda value, t: fn(t.clamp(floor, top)))


def log(input: Tensor) -> Tensor:
    """``torch.log``; at and below 0 the log of the dtype's smallest positive number, with
    derivative 0.

    So no positive number has a smaller log. At +inf: the log of the dtype's maximum, with
    derivative 0.
    Derivative: 0 wherever torch's, 1 / x, is not finite (most subnormals); the value is still
    torch's there.
    """
    return _within(torch.log, input, smallest)


def log2(input: Tensor) -> Tensor:
    """``torch.log2``, with value and derivative outside its domain as for ``log``."""
    return _within(torch.log2, input, smallest)


def log10(input: Tensor) -> Tensor:
    """``torch.log10``, with value and derivative outside its domain as for ``log``."""
    return _within(torch.log10, input, smallest)


def log1p(input: Tensor) -> Tensor:
    """``torch.log1p``; at and below -1 its value at the dtype's next number above -1, with
    derivative 0.

    At +inf: its value at the dtype's maximum, with derivative 0.
    """
    return _within(torch.log1p, input, lambda dtype: -below_one(dtype))


def logit(input: Tensor, eps: float | None = None) -> Tensor:
    """``torch.logit``; at and below 0, at and above 1: its value at the nearest number inside, with
    derivative 0.

    eps: as in torch, clamps the input into [eps, 1 - eps] first; one that is 0 in the dtype does no
    harm.
    Derivative: 0 wherever torch's, 1 / (x (1 - x)), is not finite.
    """
    x = as_float(input, "input")
    return _within(
        lambda t: torch.logit(t, eps), x, smallest(x.dtype), below_one(x.dtype), benign=0.5
    )


def exp(input: Tensor) -> Tensor:
    """``torch.exp``; where it overflows, the dtype's maximum, with derivative 0."""
    return _of_one(torch.exp, input, None, 0.0)


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


# Inverse trigonometric and hyperbolic functions.


def acos(input: Tensor) -> Tensor:
    """``torch.acos``; beyond -1 and 1 the value there; derivative 0 beyond and at both edges."""
    return _within(torch.acos, input, -1, 1, benign=0.0)


def asin(input: Tensor) -> Tensor:
    """``torch.asin``; beyond -1 and 1 the value there; derivative 0 beyond and at both edges."""
    return _within(torch.asin, input, -1, 1, benign=0.0)


def atanh(input: Tensor) -> Tensor:
    """``torch.atanh``; from -1 and 1 on, its value at the nearest number inside; derivative 0."""
    x = as_float(input, "input")
    edge = below_one(x.dtype)
    return _within(torch.atanh, x, -edge, edge, benign=0.0)


def acosh(input: Tensor) -> Tensor:
    """``torch.acosh``; at and below 1 value and derivative 0; at +inf as at the dtype's maximum."""
    return _within(torch.acosh, input, 1, benign=2.0)


def atan2(input: Tensor, other: Tensor) -> Tensor:
    """``torch.atan2``, angle of the point (x = ``other``, y = ``input``); the value is torch's,
    finite everywhere.

    Derivative: 0 in each operand for which torch's is not finite.
    Second derivative: 0 where x**2 + y**2 is 0 or inf in the dtype, where torch's first is 0.
    """

    def flat(value: Tensor, y: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
        square = y * y + x * x
        held = (square == 0) | torch.isinf(square)
        return held, held

    return guard(
        torch.atan2, broadcast(as_tensor(input, "input"), as_tensor(other, "other")), 1.0, flat=flat
    )


# Functions whose own formula is 0 / 0, cancels or overflows where their value is an ordinary
# number.


def sinc(input: Tensor) -> Tensor:
    """``torch.sinc``, sin(pi x) / (pi x); derivatives of every order are right at 0 and near it.

    torch's own second derivative is NaN at 0, and its first cancels near it in low precision. At an
    infinity: 0, with derivative 0.
    """
    x = as_float(input, "input")
    infinite = x.isinf()
    squares = [(-1) ** k * math.pi ** (2 * k) / math.factorial(2 * k + 1) for k in range(12)]
    terms = [c for s in squares for c in (s, 0.0)][:-1]
    return torch.where(infinite, 0.0, _by_series(torch.sinc, torch.where(infinite, 0.0, x), terms))


def exprel(input: Tensor) -> Tensor:
    """(exp(x) - 1) / x, which is 1 at 0, with slope 1 / 2; derivatives of every order are right.

    Value: where it overflows, the dtype's maximum, with derivative 0.
    """
    terms = [1 / math.factorial(k + 1) for k in range(15)]

    def ratio(t: Tensor) -> Tensor:
        return torch.expm1(t) / t.clamp_max(1e3)  # beyond, its numerator is infinite

    return _of_one(lambda t: _by_series(ratio, t, terms), input, None)


def _by_series(fn: Callable[[Tensor], Tensor], input: Tensor, coefficients: list[float]) -> Tensor:
    """The function in float64, by its series within 1/2 of 0."""
    x = as_float(input, "input")
    wide = x.double()
    near = wide.detach().abs() < 0.5
    terms = Series(torch.tensor(coefficients, dtype=torch.float64, device=x.device), 1.0)
    inside = terms(torch.where(near, wide, 0.0))
    return torch.where(near, inside, fn(torch.where(near, 1.0, wide))).to(x.dtype)


def logsigmoid(input: Tensor) -> Tensor:
    """``torch.nn.functional.logsigmoid``: right wherever ``log(sigmoid(x))`` is -inf.

    At -inf: the dtype's lowest number, with derivative 0.
    """
    return _of_one(torch.nn.functional.logsigmoid, input, None, 0.0)


def log1mexp(input: Tensor) -> Tensor:
    """log(1 - exp(-x)) for x > 0, without cancellation at either end.

    At and below 0: its value at the dtype's smallest positive number, with derivative 0.
    """
    x = as_float(input, "input")
    floor = smallest(x.dtype)

    def fn(t: Tensor) -> Tensor:
        small = t < math.log(2)
        low = torch.log(-torch.expm1(-torch.where(small, t, 0.5)))
        return torch.where(small, low, torch.log1p(-torch.exp(-torch.where(small, 1.0, t))))

    return guard(fn, [x], 1.0, outside=lambda value, t: fn(t.clamp_min(floor)))


def hypot(input: Tensor | Number, other: Tensor | Number) -> Tensor:
    """``torch.hypot``, sqrt(x^2 + y^2) without overflow; derivative 0 where both are 0.

    Every slope of length up to 1 is a subgradient there; torch's own is NaN.
    """
    return pair(torch.hypot, input, other, ("input", "other"))
