"""Standard deviation, variance and mean of what a mask selects."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from nanlab.safe._guard import guard
from nanlab.safe._operands import Dims, as_float, drop
from nanlab.safe._operator import is_finite


def std(
    input: Tensor,
    dim: Dims = None,
    *,
    correction: float = 1,
    keepdim: bool = False,
    unbiased: bool | None = None,
) -> Tensor:
    """``torch.std``; value 0 and derivative 0 of too few values (one value with ``correction=1``,
    or none).

    unbiased: torch's older word for ``correction``, True 1 and False 0.
    Value: too large for the dtype: its maximum, with derivative 0. At a constant row torch's own
    derivative is 0.
    """
    return _spread(
        torch.std, input, dim, correction if unbiased is None else float(unbiased), keepdim
    )


def var(
    input: Tensor,
    dim: Dims = None,
    *,
    correction: float = 1,
    keepdim: bool = False,
    unbiased: bool | None = None,
) -> Tensor:
    """``torch.var``; value and derivative outside its domain as for ``std``."""
    return _spread(
        torch.var, input, dim, correction if unbiased is None else float(unbiased), keepdim
    )


def masked_mean(input: Tensor, mask: Tensor, dim: Dims = None, keepdim: bool = False) -> Tensor:
    """Mean along ``dim`` (None: over all) of the elements where ``mask`` is true (or not 0).

    mask: broadcasts against ``input``. Where it is false the input may be anything, NaN and
    infinities included.
    Value: 0 where nothing is selected. float16 and bfloat16 are summed in float32, as
    ``torch.mean`` does, to whose bits it is equal under a mask that selects all. A mean of which
    the sum overflows is the sum of the parts; an infinity that is selected gives the dtype's
    largest magnitude.
    Derivative: 1 / count where selected, 0 elsewhere, in an empty row, and where the sum overflows.
    """
    x, chosen = as_float(input, "input"), mask != 0
    x, chosen = torch.broadcast_tensors(x, chosen)
    dims = tuple(range(x.ndim)) if dim is None else dim
    count = chosen.sum(dims, keepdim=True).clamp_min(1)
    wide = torch.promote_types(x.dtype, torch.float32)
    kept = torch.where(chosen, x, 0.0)
    mean = kept.sum(dims, keepdim=True, dtype=wide) / count
    parts = (kept.detach().to(wide) / count).sum(dims, keepdim=True)
    stands = is_finite(mean) | torch.isnan(kept).any(dims, keepdim=True)
    mean = torch.where(stands, mean.to(x.dtype), torch.nan_to_num(parts.to(x.dtype)))
    return drop(mean, dim, keepdim)


def _spread(
    fn: Callable[..., Tensor], input: Tensor, dim: Dims, correction: float, keepdim: bool
) -> Tensor:
    x = as_float(input, "input")
    dims = tuple(range(x.ndim)) if dim is None else (dim,) if isinstance(dim, int) else tuple(dim)
    too_few = math.prod([x.shape[d] for d in dims if x.ndim]) <= correction or not x.numel()

    def spread(t: Tensor) -> Tensor:
        if too_few:
            return torch.zeros_like(t).sum(dims, keepdim=True) * t.sum(dims, keepdim=True)
        return fn(t, dim, correction=correction, keepdim=True)

    return drop(guard(spread, [x], 1.0, dim=dim, reduces=True), dim, keepdim)
