"""Functions whose own formula is 0 / 0, cancels or overflows where their value is an ordinary
number."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from nanlab.safe._guard import guard, pair
from nanlab.safe._operands import Number, as_float, smallest
from nanlab.safe._series import Series


def sinc(input: Tensor) -> Tensor:
    """``torch.sinc``, sin(pi x) / (pi x); derivatives of every order are right at 0 and near it.

    torch's own second derivative is NaN at 0, and its first cancels near it in low precision.
    """
    squares = [(-1) ** k * math.pi ** (2 * k) / math.factorial(2 * k + 1) for k in range(12)]
    return _by_series(torch.sinc, input, [c for s in squares for c in (s, 0.0)][:-1])


def exprel(input: Tensor) -> Tensor:
    """(exp(x) - 1) / x, which is 1 at 0, with slope 1 / 2; derivatives of every order are right.

    Value: where it overflows, the dtype's maximum, with derivative 0.
    """
    return guard(
        lambda t: _by_series(
            lambda u: torch.expm1(u) / u, t, [1 / math.factorial(k + 1) for k in range(15)]
        ),
        [as_float(input, "input")],
        1.0,
    )


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
    return guard(torch.nn.functional.logsigmoid, [as_float(input, "input")], 0.0)


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
