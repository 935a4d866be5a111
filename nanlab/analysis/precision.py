"""What a cast would lose, told from an exponent histogram; and the loss scale that loses least."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import pandas as pd
import torch

from nanlab.formats import FloatFormat, format_of

LOSS_SCALES = range(-16, 41)  # powers of two that are tried; GradScaler starts at 2**16


@dataclass(frozen=True, slots=True)
class CastShares:
    """What rounding to a format makes of the non-zero finite values of one histogram, in counts.

    A histogram bin holds the values of [2**e, 2**(e+1)). Three limits of a format lie inside a bin, so the bin alone
    does not say on which side its values fall; ``limit_*`` counts the values of such a bin, and the count that the
    bin was added to is named beside it. All other counts are exact.
    """

    numel: int  # the non-zero finite values
    zero: int  # flushed to zero
    subnormal: int
    normal: int
    overflow: int
    limit_zero: int  # in [s/2, s), s the smallest subnormal: only s/2 itself becomes zero; counted as subnormal
    limit_normal: int  # just below the smallest normal: the last half ulp rounds up to it; counted as subnormal
    limit_overflow: int  # in the bin of the largest value: from half an ulp past it on they overflow; counted as normal

    @property
    def limit(self) -> int:
        """Values inside a limit's own bin."""
        return self.limit_zero + self.limit_normal + self.limit_overflow

    @property
    def lost(self) -> float:
        """Fraction of the values that become zero or leave the range; 0 where there are none."""
        return (self.zero + self.overflow) / self.numel if self.numel else 0.0


@dataclass(frozen=True, slots=True)
class FormatBins:
    """The bins, by floor(log2|x|), between which a format changes what it does with a value."""

    name: str
    zero_limit: int  # below: flushed to zero; here: the tie at half the smallest subnormal
    normal_limit: int  # from zero_limit to here: subnormal; here the last half ulp rounds up to a normal value
    overflow_limit: int  # to here: normal; here the largest value lies; above: overflow


def format_bins(dtype: torch.dtype) -> FormatBins:
    """The limits of ``dtype`` as histogram bins. Raises TypeMismatchError if it is no floating-point dtype."""
    limits = format_of(dtype)
    return FormatBins(limits.name, _zero_limit(limits), limits.smallest_exponent - 1, limits.largest_exponent)


def _zero_limit(limits: FloatFormat) -> int:
    return limits.smallest_exponent - limits.mantissa_bits - 1


def cast_shares(exponents: pd.Series[int], dtype: torch.dtype, log2_scale: int = 0) -> CastShares:
    """What a cast to ``dtype`` makes of values with this histogram, after they were multiplied by 2**log2_scale.

    exponents: count of values per floor(log2|x|), non-zero finite values only.

    Round to nearest even sends |x| <= smallest_subnormal / 2 to zero (IEEE 754-2019, 4.3.1).
    """
    bins = format_bins(dtype)
    scaled = exponents.index.to_numpy(dtype="int64") + log2_scale
    counts = exponents.to_numpy(dtype="int64")

    def between(low: int | None, high: int | None) -> int:
        """Values in the bins low <= bin < high."""
        inside = (scaled >= low) if low is not None else scaled == scaled
        return int(counts[inside & (scaled < high)].sum() if high is not None else counts[inside].sum())

    return CastShares(
        numel=int(counts.sum()),
        zero=between(None, bins.zero_limit),
        subnormal=between(bins.zero_limit, bins.normal_limit + 1),
        normal=between(bins.normal_limit + 1, bins.overflow_limit + 1),
        overflow=between(bins.overflow_limit + 1, None),
        limit_zero=between(bins.zero_limit, bins.zero_limit + 1),
        limit_normal=between(bins.normal_limit, bins.normal_limit + 1),
        limit_overflow=between(bins.overflow_limit, bins.overflow_limit + 1),
    )


def best_scale(exponents: pd.Series[int], dtype: torch.dtype, scales: Iterable[int] = LOSS_SCALES) -> int:
    """log2 of the loss scale with which a cast to ``dtype`` loses least.

    One infinite gradient costs the whole step, so no overflow comes first (a value in the bin of the largest one is
    taken to overflow), then the fewest values flushed to zero, then the fewest subnormal, then the smallest change.
    """

    def cost(log2_scale: int) -> tuple[int, int, int, int]:
        cast = cast_shares(exponents, dtype, log2_scale)
        return cast.overflow + cast.limit_overflow, cast.zero + cast.limit_zero, cast.subnormal, abs(log2_scale)

    return min(scales, key=cost)


def add_histograms(histograms: Iterable[pd.Series[int]]) -> pd.Series[int]:
    """Counts per exponent of all values together, ordered by exponent."""
    total: dict[int, int] = {}
    for exponents in histograms:
        for exponent, count in zip(exponents.index.tolist(), exponents.tolist(), strict=True):
            total[int(exponent)] = total.get(int(exponent), 0) + int(count)
    index = pd.Index(sorted(total), dtype="int64", name="exponent")
    return pd.Series([total[e] for e in index], index=index, name="count", dtype="int64")
