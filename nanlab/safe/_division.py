"""Division and reciprocal."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from nanlab.safe._guard import guard, pair
from nanlab.safe._operands import Number, as_float


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
    return guard(
        torch.reciprocal,
        [as_float(input, "input")],
        1.0,
        outside=lambda value, x: torch.where(x == 0, 0.0, value),
    )
