"""Square roots and powers."""

from __future__ import annotations

import torch
from torch import Tensor

from nanlab.safe._guard import guard, pair
from nanlab.safe._operands import Number, as_float


def sqrt(input: Tensor) -> Tensor:
    """``torch.sqrt``; value 0 and derivative 0 at and below 0.

    At +inf: value the dtype's maximum, derivative 0.
    """
    return guard(torch.sqrt, [as_float(input, "input")], 1.0)


def rsqrt(input: Tensor) -> Tensor:
    """``torch.rsqrt``; value 0 and derivative 0 at and below 0, as for ``reciprocal``.

    Derivative: 0 wherever torch's, -x**(-3/2) / 2, is not finite (tiny x); the value is still
    torch's there.
    """
    return guard(
        torch.rsqrt,
        [as_float(input, "input")],
        1.0,
        outside=lambda value, x: torch.where(x <= 0, 0.0, value),
    )


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
