"""Formats: every limit agrees with torch's own cast."""

from __future__ import annotations

import math

import pytest
import torch

from nanlab.errors import NanlabError, TypeMismatchError
from nanlab.formats import format_of

NARROW = [torch.float16, torch.bfloat16, torch.float8_e4m3fn, torch.float8_e5m2]
ALL = [*NARROW, torch.float32, torch.float64]


def cast(value: float, dtype: torch.dtype) -> float:
    """What torch makes of a float32 ``value`` in ``dtype``."""
    return torch.tensor(value, dtype=torch.float32).to(dtype).double().item()


def next32(value: float, towards: float) -> float:
    return torch.nextafter(torch.tensor(value), torch.tensor(towards)).item()


@pytest.mark.parametrize("dtype", ALL, ids=str)
def test_bits_add_up_to_the_size_of_the_dtype(dtype: torch.dtype) -> None:
    limits = format_of(dtype)
    assert 1 + limits.exponent_bits + limits.mantissa_bits == 8 * dtype.itemsize


@pytest.mark.parametrize("dtype", ALL, ids=str)
def test_ulp_is_the_distance_from_one_to_the_next_value(dtype: torch.dtype) -> None:
    limits = format_of(dtype)
    integers = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[dtype.itemsize]
    one = torch.ones(1, dtype=dtype)
    following = (one.view(integers) + 1).view(dtype)
    assert following.double().item() - 1.0 == limits.ulp
    assert one.view(integers).item() >> limits.mantissa_bits == limits.bias


@pytest.mark.parametrize("dtype", ALL, ids=str)
def test_smallest_subnormal_is_the_value_with_bits_one(dtype: torch.dtype) -> None:
    limits = format_of(dtype)
    integers = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[dtype.itemsize]
    assert torch.ones(1, dtype=integers).view(dtype).double().item() == limits.smallest_subnormal
    first_normal = torch.full((1,), 1 << limits.mantissa_bits, dtype=integers).view(dtype)
    assert first_normal.double().item() == limits.smallest_normal == 2.0**limits.smallest_exponent


@pytest.mark.parametrize("dtype", NARROW, ids=str)
def test_cast_flushes_up_to_rounds_to_zero_and_not_beyond(dtype: torch.dtype) -> None:
    limits = format_of(dtype)
    if dtype is torch.bfloat16:  # half its smallest subnormal is a float32 subnormal still
        assert limits.rounds_to_zero == 2.0**-134
    assert cast(limits.rounds_to_zero, dtype) == 0.0
    assert cast(next32(limits.rounds_to_zero, 1.0), dtype) == limits.smallest_subnormal


@pytest.mark.parametrize("dtype", NARROW, ids=str)
def test_cast_leaves_the_range_at_overflows_from(dtype: torch.dtype) -> None:
    limits = format_of(dtype)
    assert cast(next32(limits.overflows_from, 0.0), dtype) == limits.max
    assert cast(limits.overflows_from, dtype) == limits.overflows_to
    assert cast(-limits.overflows_from, dtype) == -limits.overflows_to


def test_float64_to_float32_overflows_where_stated() -> None:
    limits = format_of(torch.float32)
    wide = torch.tensor(
        [limits.overflows_from, math.nextafter(limits.overflows_from, 0.0)], dtype=torch.float64
    )
    assert wide.float().tolist() == [math.inf, limits.max]


def test_float16_limits_are_the_known_ones() -> None:
    limits = format_of(torch.float16)
    assert (limits.max, limits.overflows_from, limits.rounds_to_zero) == (
        65504.0,
        65520.0,
        2.0**-25,
    )
    assert (limits.exponent_bits, limits.mantissa_bits, limits.bias) == (5, 10, 15)


def test_format_without_infinity_says_what_the_cast_gives_instead() -> None:
    beyond = torch.tensor([1e6]).to(torch.float8_e4m3fn).double().item()
    stated = format_of(torch.float8_e4m3fn).overflows_to
    assert beyond == stated or (math.isnan(beyond) and math.isnan(stated))
    assert format_of(torch.float8_e5m2).overflows_to == math.inf


@pytest.mark.parametrize("dtype", [torch.int64, torch.bool, torch.complex64])
def test_other_dtypes_are_refused_with_an_example(dtype: torch.dtype) -> None:
    with pytest.raises(TypeMismatchError, match=f"such as torch.float16, got {dtype}") as caught:
        format_of(dtype)
    assert isinstance(caught.value, NanlabError) and isinstance(caught.value, TypeError)
