"""The limits of each floating-point format, derived from ``torch.finfo``."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cache

import torch

from nanlab.errors import TypeMismatchError

_DTYPES = (
    torch.float16,
    torch.bfloat16,
    torch.float32,
    torch.float64,
    torch.float8_e4m3fn,
    torch.float8_e5m2,
)
HALF_PRECISION = frozenset((torch.float16, torch.bfloat16))


@dataclass(frozen=True, slots=True)
class FloatFormat:
    """What a floating-point dtype can hold, and where rounding to nearest even leaves its range."""

    name: str  # without "torch.", e.g. "float16"
    dtype: torch.dtype
    exponent_bits: int
    mantissa_bits: int  # stored bits, without the implicit leading 1
    bias: int  # the stored exponent of 1.0
    max: float  # largest finite magnitude
    smallest_normal: float
    smallest_subnormal: float
    ulp: float  # spacing of neighbouring values at 1.0
    rounds_to_zero: float  # largest magnitude that the cast turns into 0 (a tie goes to the even 0)
    # magnitude from which the cast leaves the range: halfway from max to the value after it
    overflows_from: float
    # what the cast makes of a larger magnitude: inf; max in float8_e4m3fn, which has no inf
    overflows_to: float

    @property
    def smallest_exponent(self) -> int:
        """floor(log2|x|) of the smallest normal value, e.g. -14 for float16."""
        return math.frexp(self.smallest_normal)[1] - 1

    @property
    def largest_exponent(self) -> int:
        """floor(log2|x|) of the largest finite value, e.g. 15 for float16."""
        return math.frexp(self.max)[1] - 1


@cache
def format_of(dtype: torch.dtype | str) -> FloatFormat:
    """The limits of ``dtype``: float16, bfloat16, float32, float64, float8_e4m3fn or float8_e5m2.

    Limits refer to a cast from a wider format, rounding to nearest, ties to even (IEEE 754-2019,
    4.3.1). Raises TypeMismatchError for any other dtype.
    """
    if isinstance(dtype, str):
        dtype = getattr(torch, dtype)
    if dtype not in _DTYPES:
        raise TypeMismatchError(
            f"expected a floating-point dtype such as torch.float16, got {dtype}"
        )
    info = torch.finfo(dtype)
    mantissa_bits = 1 - math.frexp(info.eps)[1]
    smallest_subnormal = info.smallest_normal * info.eps
    half_step = math.ldexp(info.eps, math.frexp(info.max)[1] - 2)
    return FloatFormat(
        name=str(dtype).removeprefix("torch."),
        dtype=dtype,
        exponent_bits=info.bits - 1 - mantissa_bits,
        mantissa_bits=mantissa_bits,
        bias=2 - math.frexp(info.smallest_normal)[1],
        max=info.max,
        smallest_normal=info.smallest_normal,
        smallest_subnormal=smallest_subnormal,
        ulp=info.eps,
        rounds_to_zero=smallest_subnormal / 2,
        overflows_from=info.max + half_step,
        overflows_to=torch.tensor(math.inf).to(dtype).item(),
    )
