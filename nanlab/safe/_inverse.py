"""Inverse trigonometric and hyperbolic functions."""

from __future__ import annotations

import torch
from torch import Tensor

from nanlab.safe._guard import guard
from nanlab.safe._operands import as_float, as_tensor, below_one, broadcast


def acos(input: Tensor) -> Tensor:
    """``torch.acos``; below -1 and above 1 the value at -1 and 1; derivative 0 there and at both
    edges."""
    return guard(
        torch.acos,
        [as_float(input, "input")],
        0.0,
        outside=lambda value, x: torch.acos(x.clamp(-1, 1)),
    )


def asin(input: Tensor) -> Tensor:
    """``torch.asin``; below -1 and above 1 the value at -1 and 1; derivative 0 there and at both
    edges."""
    return guard(
        torch.asin,
        [as_float(input, "input")],
        0.0,
        outside=lambda value, x: torch.asin(x.clamp(-1, 1)),
    )


def atanh(input: Tensor) -> Tensor:
    """``torch.atanh``; at -1 and 1 and beyond, its value at the dtype's nearest number inside, with
    derivative 0."""
    x = as_float(input, "input")
    edge = below_one(x.dtype)
    return guard(torch.atanh, [x], 0.0, outside=lambda value, t: torch.atanh(t.clamp(-edge, edge)))


def acosh(input: Tensor) -> Tensor:
    """``torch.acosh``; at and below 1 value 0 and derivative 0; at +inf its value at the dtype's
    maximum."""
    return guard(
        torch.acosh,
        [as_float(input, "input")],
        2.0,
        outside=lambda value, x: torch.acosh(x.clamp(1, torch.finfo(x.dtype).max)),
    )


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
