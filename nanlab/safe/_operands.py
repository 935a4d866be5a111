"""Operands of :mod:`nanlab.safe`: their dtype and shape, as torch takes them, and the limits of a
dtype."""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch import Tensor

from nanlab.errors import TypeMismatchError

Dims = int | tuple[int, ...] | None
Number = int | float


def smallest(dtype: torch.dtype) -> float:
    """Smallest positive number of ``dtype``: its smallest subnormal, spacing of the numbers next to
    zero."""
    limits = torch.finfo(dtype)
    return limits.smallest_normal * limits.eps


def below_one(dtype: torch.dtype) -> float:
    """Largest number of ``dtype`` below 1."""
    return 1.0 - torch.finfo(dtype).eps / 2


def as_float(x: Any, name: str) -> Tensor:
    """``x`` as a real floating-point tensor; integers become the default dtype, as in torch's own
    functions.

    Raises TypeMismatchError (a TypeError) for what is no tensor, and for complex tensors.
    """
    if not isinstance(x, Tensor):
        raise TypeMismatchError(
            f"expected a tensor for {name}, got {type(x).__name__}; wrap it in torch.as_tensor"
        )
    if x.is_complex():
        raise TypeMismatchError(
            f"expected a real tensor for {name}, got {x.dtype}; treat x.real and x.imag apart"
        )
    return x if x.is_floating_point() else x.to(torch.get_default_dtype())


def as_tensor(x: Any, name: str) -> Tensor:
    """``x`` if it is a real tensor of any dtype; raises as :func:`as_float` does."""
    as_float(x, name)
    assert isinstance(x, Tensor)
    return x


def broadcast(a: Tensor, b: Tensor) -> list[Tensor]:
    """Both tensors in the dtype that torch would compute in (``torch.result_type``), and in one
    shape."""
    dtype = _promoted([t for t in (a, b) if t.is_floating_point()])
    return list(torch.broadcast_tensors(a.to(dtype), b.to(dtype)))


def broadcast_shape(a: torch.Size, b: torch.Size) -> torch.Size:
    """The shape that both broadcast to."""
    shape: torch.Size = torch.broadcast_shapes(a, b)
    return shape


def _promoted(floating: list[Tensor]) -> torch.dtype:
    """``torch.result_type`` of floating tensors; that function itself cannot be compiled (torch
    2.13)."""
    dimensioned = [t.dtype for t in floating if t.ndim] or [t.dtype for t in floating]
    return (
        functools.reduce(torch.promote_types, dimensioned)
        if dimensioned
        else torch.get_default_dtype()
    )


def drop(x: Tensor, dim: Dims, keepdim: bool) -> Tensor:
    """``x`` without its dimensions ``dim`` of size 1 (None: all), or as it is."""
    if keepdim:
        return x
    return x.squeeze(tuple(range(x.ndim)) if dim is None else dim)
