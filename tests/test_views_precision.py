"""What a histogram predicts of a cast is what the cast does."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
import torch

from nanlab.analysis.precision import (
    CastShares,
    add_histograms,
    best_scale,
    cast_shares,
    format_bins,
)
from nanlab.formats import format_of

DTYPES = [torch.float16, torch.bfloat16, torch.float8_e4m3fn, torch.float8_e5m2]


def histogram(values: torch.Tensor) -> pd.Series:
    finite = values.double().abs()
    finite = finite[(finite > 0) & finite.isfinite()].numpy()
    exponents, counts = np.unique(np.frexp(finite)[1] - 1, return_counts=True)
    return pd.Series(counts, index=pd.Index(exponents, name="exponent"), name="count")


def really_cast(values: torch.Tensor, dtype: torch.dtype, log2_scale: int) -> dict[str, int]:
    """Counts after torch's own cast of the scaled values (float32 where that is exact, as
    GradScaler does it)."""
    limits = format_of(dtype)
    scaled = values.double() * 2.0**log2_scale
    result = scaled.to(dtype).double().abs()
    over = scaled.abs() >= limits.overflows_from
    zero = (result == 0) & (scaled != 0)
    subnormal = (result > 0) & (result < limits.smallest_normal)
    return {
        "zero": int(zero.sum()),
        "overflow": int(over.sum()),
        "subnormal": int(subnormal.sum()),
        "normal": int(((result >= limits.smallest_normal) & ~over).sum()),
    }


def magnitudes(low: int, high: int) -> torch.Tensor:
    """Every significand of 1/16 steps in every binade of 2**low to 2**high, both signs."""
    significand = 1 + torch.arange(16, dtype=torch.float64) / 16
    values = torch.cat([significand * 2.0**e for e in range(low, high)])
    return torch.cat([values, -values])


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("log2_scale", range(-40, 41, 5))
def test_prediction_and_cast_agree_but_for_values_in_a_limits_own_bin(
    dtype: torch.dtype, log2_scale: int
) -> None:
    values = magnitudes(-40, 24) if dtype != torch.bfloat16 else magnitudes(-140, 128)
    predicted, seen = (
        cast_shares(histogram(values), dtype, log2_scale),
        really_cast(values, dtype, log2_scale),
    )
    assert predicted.zero <= seen["zero"] <= predicted.zero + predicted.limit_zero
    assert predicted.overflow <= seen["overflow"] <= predicted.overflow + predicted.limit_overflow
    assert (
        0
        <= predicted.subnormal - seen["subnormal"]
        <= predicted.limit_zero + predicted.limit_normal
    )
    assert seen["zero"] + seen["subnormal"] + seen["normal"] + seen["overflow"] == predicted.numel


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("log2_scale", range(-30, 31, 3))
def test_prediction_is_exact_outside_the_limits_own_bins(
    dtype: torch.dtype, log2_scale: int
) -> None:
    bins = format_bins(dtype)
    values = magnitudes(-40, 24) if dtype != torch.bfloat16 else magnitudes(-140, 128)
    exponent = torch.frexp(values)[1] - 1 + log2_scale
    for limit in (bins.zero_limit, bins.normal_limit, bins.overflow_limit):
        values, exponent = values[exponent != limit], exponent[exponent != limit]
    predicted = cast_shares(histogram(values), dtype, log2_scale)
    assert predicted.limit == 0
    seen = really_cast(values, dtype, log2_scale)
    assert {name: getattr(predicted, name) for name in seen} == seen


def test_parts_add_up_to_the_values_counted() -> None:
    exponents = histogram(torch.randn(10_000) * 1e-6)
    for dtype in DTYPES:
        for scale in range(-20, 40, 7):
            cast = cast_shares(exponents, dtype, scale)
            assert cast.zero + cast.subnormal + cast.normal + cast.overflow == cast.numel == 10_000


def test_no_values_lose_nothing() -> None:
    empty = pd.Series([], index=pd.Index([], dtype="int64"), dtype="int64")
    assert cast_shares(empty, torch.float16) == CastShares(0, 0, 0, 0, 0, 0, 0, 0)
    assert cast_shares(empty, torch.float16).lost == 0.0
    assert best_scale(empty, torch.float16) == 0


def test_best_scale_loses_no_more_than_any_other_when_really_cast() -> None:
    values = torch.randn(4096, dtype=torch.float64) * 1e-8
    best = best_scale(histogram(values), torch.float16)
    seen = really_cast(values, torch.float16, best)
    assert seen["overflow"] == 0
    assert seen["zero"] == min(
        really_cast(values, torch.float16, k)["zero"] for k in range(-16, 41)
    )


def test_best_scale_leaves_healthy_values_alone_and_never_overflows() -> None:
    assert best_scale(histogram(torch.ones(8)), torch.float16) == 0
    wide = torch.tensor([2.0**-60, 2.0**14])
    assert (
        really_cast(wide, torch.float16, best_scale(histogram(wide), torch.float16))["overflow"]
        == 0
    )


def test_added_histograms_hold_every_value_once() -> None:
    first, second = torch.randn(100), torch.randn(50) * 1e3
    both = add_histograms([histogram(first), histogram(second)])
    pd.testing.assert_series_equal(
        both, histogram(torch.cat([first, second])), check_index_type=False
    )
