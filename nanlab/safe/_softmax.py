"""Softmax, its logarithm, and log-sum-exp; rows may be masked throughout."""

from __future__ import annotations

import torch
from torch import Tensor

from nanlab.safe._guard import guard
from nanlab.safe._operands import as_float, drop


def softmax(input: Tensor, dim: int, dtype: torch.dtype | None = None) -> Tensor:
    """``torch.softmax``; value 0 and derivative 0 in a row that is -inf throughout.

    A row with +inf counts it as the dtype's maximum, with derivative 0.
    """
    return guard(
        lambda t: torch.softmax(t, dim),
        [_logits(input, dtype)],
        0.0,
        outside=lambda value, t: torch.softmax(_below_infinity(t), dim),
        dim=dim,
        reduces=True,
    )


def log_softmax(input: Tensor, dim: int, dtype: torch.dtype | None = None) -> Tensor:
    """``torch.log_softmax``; the dtype's lowest number, with derivative 0, in place of -inf.

    That is an element whose input is -inf, and every element of a row that is -inf throughout. So a
    target of 0 takes nothing from it, where 0 times -inf would be NaN. The other elements of the
    row are torch's. A row with +inf counts it as the dtype's maximum, with derivative 0.
    """
    x = _logits(input, dtype)
    lowest = torch.finfo(x.dtype).min
    rows = guard(
        lambda t: torch.log_softmax(t, dim),
        [x],
        0.0,
        outside=lambda value, t: torch.nan_to_num(
            torch.log_softmax(_below_infinity(t), dim), nan=lowest
        ),
        dim=dim,
        reduces=True,
        valid=lambda value: ~torch.isnan(value),
    )
    return rows.clamp_min(torch.finfo(rows.dtype).min)


def logsumexp(input: Tensor, dim: int | tuple[int, ...], keepdim: bool = False) -> Tensor:
    """``torch.logsumexp``; the dtype's lowest number, with derivative 0, for a row that is -inf
    throughout or empty.

    A row with +inf counts it as the dtype's maximum, with derivative 0.
    """
    rows = guard(
        lambda t: torch.logsumexp(t, dim, keepdim=True),
        [as_float(input, "input")],
        0.0,
        outside=lambda value, t: torch.logsumexp(_below_infinity(t), dim, keepdim=True),
        dim=dim,
        reduces=True,
    )
    return drop(rows, dim, keepdim)


def _logits(input: Tensor, dtype: torch.dtype | None) -> Tensor:
    x = as_float(input, "input")
    return x if dtype is None else x.to(dtype)


def _below_infinity(x: Tensor) -> Tensor:
    """``x`` with +inf lowered to the dtype's maximum; -inf stays."""
    return x.clamp(max=torch.finfo(x.dtype).max)
