"""What a cast would lose, told from an exponent histogram, and how near a run came to it."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pandas as pd
import torch

from nanlab.formats import HALF_PRECISION, format_of
from nanlab.operators import having
from nanlab.trace import Trace
from nanlab.trace.history import UNSCALE, Place
from nanlab.trace.op import BACKWARD, FORWARD

# What a cast would lose, told from an exponent histogram; and the loss scale that loses least.

Counts = npt.NDArray[np.int64]
LOSS_SCALES = range(-16, 41)  # powers of two that are tried; GradScaler starts at 2**16


@dataclass(frozen=True, slots=True)
class CastShares:
    """What rounding to a format makes of the non-zero finite values of one histogram, in counts.

    A histogram bin holds the values of [2**e, 2**(e+1)). Three limits of a format lie inside a bin,
    so the bin alone does not say on which side its values fall; ``limit_*`` counts the values of
    such a bin, and the count that the bin was added to is named beside it. All other counts are
    exact.
    """

    numel: int  # the non-zero finite values
    zero: int  # flushed to zero
    subnormal: int
    normal: int
    overflow: int
    # in [s/2, s), s the smallest subnormal: only s/2 itself becomes zero; counted as subnormal
    limit_zero: int
    # just below the smallest normal: the last half ulp rounds up to it; counted as subnormal
    limit_normal: int
    # in the bin of the largest value: from half an ulp past it on they overflow; counted as normal
    limit_overflow: int

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
    # from zero_limit to here: subnormal; here the last half ulp rounds up to a normal value
    normal_limit: int
    overflow_limit: int  # to here: normal; here the largest value lies; above: overflow

    def zone(self, exponent: int) -> int:
        """0: flushed to zero, 1: subnormal, 2: normal, 3: overflow."""
        above = (self.zero_limit - 1, self.normal_limit, self.overflow_limit)
        return sum(exponent > limit for limit in above)

    @property
    def edges(self) -> tuple[int, int, int]:
        """The exponents at which the zones after the first begin."""
        return self.zero_limit, self.normal_limit + 1, self.overflow_limit + 1


def format_bins(dtype: torch.dtype) -> FormatBins:
    """The limits of ``dtype`` in bins. Raises TypeMismatchError if not floating point."""
    limits = format_of(dtype)
    low = limits.smallest_exponent - 1
    return FormatBins(limits.name, low - limits.mantissa_bits, low, limits.largest_exponent)


def cast_shares(exponents: pd.Series[int], dtype: torch.dtype, log2_scale: int = 0) -> CastShares:
    """What a cast to ``dtype`` makes of values with this histogram, after they were multiplied by
    2**log2_scale.

    exponents: count of values per floor(log2|x|), non-zero finite values only.

    Round to nearest even sends |x| <= smallest_subnormal / 2 to zero (IEEE 754-2019, 4.3.1).
    """
    found = cast_counts(exponents, dtype, np.array([log2_scale]))
    return CastShares(**{name: int(counts[0]) for name, counts in found.items()})


def cast_counts(
    exponents: pd.Series[int], dtype: torch.dtype, log2_scales: Counts
) -> dict[str, Counts]:
    """The numbers of ``cast_shares`` by their names, each for several scales."""
    bins, below = format_bins(dtype), _Below(exponents)
    flushed, tied = below(bins.zero_limit - log2_scales), below(bins.zero_limit + 1 - log2_scales)
    faint = below(bins.normal_limit - log2_scales)
    small = below(bins.normal_limit + 1 - log2_scales)
    large = below(bins.overflow_limit - log2_scales)
    kept = below(bins.overflow_limit + 1 - log2_scales)
    return {
        "numel": np.full_like(flushed, below.numel),
        "zero": flushed,
        "subnormal": small - flushed,
        "normal": kept - small,
        "overflow": below.numel - kept,
        "limit_zero": tied - flushed,
        "limit_normal": small - faint,
        "limit_overflow": kept - large,
    }


def rounded_shares(values: torch.Tensor, rounded: torch.Tensor, dtype: torch.dtype) -> CastShares:
    """The shares counted element by element: no value is left in a limit's own bin.

    rounded: the values in ``dtype``.
    """
    there = values.isfinite() & (values != 0)
    sizes = rounded.to(torch.float64)[there].abs()
    zero, overflow = int((sizes == 0).sum()), int((~sizes.isfinite()).sum())
    subnormal = int((sizes < format_of(dtype).smallest_normal).sum()) - zero
    normal = sizes.numel() - zero - subnormal - overflow
    return CastShares(sizes.numel(), zero, subnormal, normal, overflow, 0, 0, 0)


class _Below:
    """How many values of a histogram lie in the bins below one, or below each of several."""

    def __init__(self, exponents: pd.Series[int]) -> None:
        order = np.argsort(exponents.index.to_numpy(dtype="int64"))
        self._bins = exponents.index.to_numpy(dtype="int64")[order]
        self._sums = np.concatenate([[0], np.cumsum(exponents.to_numpy(dtype="int64")[order])])
        self.numel = int(self._sums[-1])

    def __call__(self, exponent: Counts | int) -> Counts:
        found: Counts = self._sums[np.searchsorted(self._bins, exponent)]
        return found


def best_scale(exponents: pd.Series[int], dtype: torch.dtype) -> int:
    """log2 of the loss scale with which a cast to ``dtype`` loses least.

    One infinite gradient costs the whole step, so no overflow comes first (a value in the bin of
    the largest one is taken to overflow), then the fewest values flushed to zero, then the fewest
    subnormal, then the smallest change.
    """
    bins, below = format_bins(dtype), _Below(exponents)
    tried = np.array(sorted(LOSS_SCALES, key=abs), dtype=np.int64)
    zero, small = below(bins.zero_limit + 1 - tried), below(bins.normal_limit + 1 - tried)
    overflow = below.numel - below(bins.overflow_limit - tried)
    return int(tried[np.lexsort((np.abs(tried), small - zero, zero, overflow))[0]])


def add_histograms(histograms: Iterable[pd.Series[int]]) -> pd.Series[int]:
    """Counts per exponent of all values together, ordered by exponent."""
    total: dict[int, int] = {}
    for exponents in histograms:
        for exponent, count in zip(exponents.index.tolist(), exponents.tolist(), strict=True):
            total[int(exponent)] = total.get(int(exponent), 0) + int(count)
    index = pd.Index(sorted(total), dtype="int64", name="exponent")
    return pd.Series([total[e] for e in index], index=index, name="count", dtype="int64")


# Headroom: how many bits lie between a run's results and the limits of a low-precision format.


@dataclass(frozen=True)
class Headroom:
    """The results of all remembered steps closest to a format's ceiling and floor."""

    dtype: str  # of the format
    ran: bool  # whether the run computed in it; False: what it would be there
    # bits between the largest magnitude of any result and the largest number; negative: beyond it
    ceiling: float
    # bits between the smallest magnitude that is the largest of a result, and the smallest normal
    # number
    floor: float
    highest: Place
    lowest: Place
    overflow: Place | None  # of a result that became infinite unseen, for it was divided by


_CONSTANTS = having("constant")
NEAR = 1e-4  # bits below the largest number of a dtype that count as that number


def _largest(name: str) -> float:
    """log2 of the largest number of a dtype."""
    dtype = getattr(torch, name, None)
    if not isinstance(dtype, torch.dtype) or not dtype.is_floating_point:
        return math.inf
    return math.log2(torch.finfo(dtype).max)


def headroom(trace: Trace) -> Headroom | None:
    """The headroom in the narrowest format that the run computed in, else in float16; None where no
    step was followed.

    Each result of a forward or backward operation counts by its largest magnitude in a step, so
    that partly flushed ones do not touch the floor. Left out are results that are all zero,
    constants, a dtype's largest number (as in masks), and what a loss scaler computes as it divides
    its scale out.
    """
    recording = trace.recording
    series = recording.training.series
    if not len(series) or not series.places:
        return None
    names = {str(dtype).removeprefix("torch."): dtype for dtype in HALF_PRECISION}
    dtypes = {place.dtype for place in series.places}
    used = [name for name in ("float16", "bfloat16") if name in dtypes]
    name, ran = (used[0], used[:1]) if used else ("float16", ["float32", "float64"])
    scaler = {p.line for p in series.places if p.op == UNSCALE}
    chosen = [
        (p.phase == BACKWARD or (p.phase == FORWARD and p.line not in scaler))
        and p.dtype in ran
        and p.op not in _CONSTANTS
        for p in series.places
    ]
    # a mask of finfo.min is another number in another format
    tops = np.array([_largest(p.dtype) - NEAR for p in series.places])
    table = np.where(np.isfinite(series.table) & chosen, series.table, np.nan)
    table = np.where(table < tops, table, np.nan)
    if not np.isfinite(table).any():
        return None
    limits = format_of(names.get(name, torch.float16))
    high = int(np.nanargmax(table) % table.shape[1])
    low = int(np.nanargmin(table) % table.shape[1])
    ceiling = math.log2(limits.max) - float(np.nanmax(table))
    floor = float(np.nanmin(table)) - math.log2(limits.smallest_normal)
    flushes = recording.training.flushes.values()
    over = next((f.at for f in flushes if f.overflow and f.at.dtype == name), None)
    ends = series.places[high], series.places[low]
    return Headroom(name, bool(used), ceiling, floor, *ends, over)
