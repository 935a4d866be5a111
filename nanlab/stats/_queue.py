"""How a row is computed on a device: by the Triton kernel where there is one, else by operations of
torch."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from functools import cache

import torch

from nanlab.stats import _torch
from nanlab.stats._device import DeviceRow


def enqueue(t: torch.Tensor, times: int, implicit_zeros: int) -> DeviceRow:
    """Enqueue the row of the real, dense, not empty elements ``t`` on their device."""
    kernel = triton_kernel(t.dtype) if t.is_cuda else None
    return (kernel or _torch.row_of)(t, times, implicit_zeros)


@cache
def triton_kernel(dtype: torch.dtype) -> Callable[[torch.Tensor, int, int], DeviceRow] | None:
    """The Triton kernel, proved by one launch; None where it does not read ``dtype``, or cannot be
    compiled."""
    try:
        from nanlab.stats import _triton
    except ImportError:
        return None
    if dtype not in _triton.DTYPES:
        return None
    try:
        _triton.row_of(torch.ones(1, device="cuda", dtype=dtype), 1, 0)
    except Exception as error:  # no C compiler, an old device: Triton fails in many ways
        warnings.warn(
            f"Triton failed ({error!r}): {dtype} on CUDA is summarised more slowly, by torch",
            stacklevel=2,
        )
        return None
    return _triton.row_of
