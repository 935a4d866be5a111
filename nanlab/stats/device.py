"""Rows of statistics computed on a device by operations of torch, and their way to the host."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cache
from typing import Literal

import numpy as np
import torch

from nanlab.stats import layout as L

# A tensor is counted by the intervals that its bit patterns lie in, all in one pass. Each number at
# which a count of the row begins or ends is an edge between two intervals.

HEAD = L.RMS + 1  # words of a row before its bins
VALUES = HEAD - L.MIN  # words before the counts of a row on its device
CHUNK = 1 << 22  # elements counted at a time: their int64 places need twice the memory of float32


@dataclass(frozen=True, slots=True)
class Bits:
    """Bit patterns of one width: without the sign they sort like the magnitudes they stand for."""

    integer: torch.dtype
    floating: torch.dtype
    mantissa_bits: int
    bias: int
    half_zero: float  # torch's cast to float16 flushes to zero up to here
    half_normal: float  # rounds to a normal value from here
    half_inf: float  # and overflows from here


FLOAT32 = Bits(torch.int32, torch.float32, 23, 127, 2.0**-25, 2.0**-14 - 2.0**-25, 65520.0)
# torch casts float64 to float16 by way of float32: each limit lies half a float32 ulp lower, or
# higher at the zero
FLOAT64 = Bits(
    torch.int64,
    torch.float64,
    52,
    1023,
    2.0**-25 + 2.0**-49,
    2.0**-14 - 2.0**-25 - 2.0**-39,
    65520.0 - 2.0**-9,
)


@dataclass(frozen=True, slots=True)
class Intervals:
    """What the counts of intervals say of a row."""

    edges: torch.Tensor  # bits at which they begin, but for the first, which has no beginning
    heads: np.ndarray  # bool [intervals, counts of a row from NAN on]: those that each adds to
    bins: np.ndarray  # the bin of each; one more than there are for zeros, NaN and infinities
    codes: np.ndarray  # of the bins


@cache
def intervals_of(dtype: torch.dtype) -> Intervals:
    """The intervals of a floating-point dtype, by the bits of float32 or of float64."""
    form = FLOAT64 if dtype is torch.float64 else FLOAT32
    mantissa, most = form.mantissa_bits, torch.iinfo(form.integer).max
    inf = (2 * form.bias + 1) << mantissa

    def bits(value: float) -> int:
        return int(torch.tensor(value, dtype=form.floating).view(form.integer))

    own, zero = bits(torch.finfo(dtype).smallest_normal), bits(form.half_zero)
    normal, top = bits(form.half_normal), bits(form.half_inf)
    powers = {1 << k for k in range(mantissa)}
    powers |= {e << mantissa for e in range(1, 2 * form.bias + 2)}
    edges = np.array(sorted({0, inf + 1, own, zero + 1, normal, top} | powers), np.int64)
    exponents = np.where(
        edges >> mantissa, (edges >> mantissa) - form.bias, 1 - form.bias - mantissa
    )
    subnormal = (edges > 0) & (edges >> mantissa == 0)
    exponents[subnormal] += np.log2(edges[subnormal]).astype(np.int64)
    both = np.concatenate([edges, edges])  # as integers negative numbers come first
    negative = np.repeat([True, False], len(edges))
    heads = np.stack(
        [
            both > inf,
            (both == inf) & ~negative,
            (both == inf) & negative,
            both == 0,
            (both > 0) & (both < own),
            (both > 0) & (both <= zero),
            (zero < both) & (both < normal),
            (top <= both) & (both < inf),
        ],
        1,
    )
    first = 1 - form.bias - mantissa  # exponent of the smallest subnormal
    span = form.bias + 1 - first
    bins = np.tile(exponents - first, 2) + span * negative
    bins[(both == 0) | (both >= inf)] = 2 * span
    codes = np.tile(np.arange(first, first + span) + L.EXPONENT_OFFSET, 2) << 1
    codes[span:] |= 1
    starts = np.concatenate([edges - most - 1, edges])[1:]
    return Intervals(torch.from_numpy(starts).to(form.integer), heads, bins, codes)


# Of integers and bool zeros alone are counted.
ZEROS = Intervals(
    torch.empty(0),
    np.arange(L.NAN, L.MIN)[None] == L.ZERO,
    np.zeros(1, np.int64),
    np.zeros(0, np.int64),
)


@cache
def edges_on(device: torch.device, dtype: torch.dtype) -> torch.Tensor:
    """The edges of a dtype's intervals, on a device."""
    return intervals_of(dtype).edges.to(device)


@dataclass(frozen=True, slots=True)
class DeviceRow:
    """A row computed by operations of torch, perhaps not finished yet."""

    words: torch.Tensor  # int64: the bits of VALUES values, then the count of each interval
    intervals: Intervals
    numel: int  # elements that were read
    times: int  # how often each element occurs
    implicit_zeros: int  # of a sparse tensor
    values: Literal["float64", "float32"]


def fetch(rows: list[DeviceRow]) -> list[np.ndarray]:
    """The words of all ``rows`` on the host, in one transfer per device."""
    by_device: dict[torch.device, list[int]] = {}
    for place, row in enumerate(rows):
        by_device.setdefault(row.words.device, []).append(place)
    words: list[np.ndarray] = [np.empty(0, np.int64)] * len(rows)
    for device, places in by_device.items():
        if device.type == "cuda":
            torch.cuda.synchronize(device)  # rows may have been enqueued on several streams
        joined = torch.cat([rows[place].words for place in places]).cpu().numpy()
        ends = np.cumsum([rows[place].words.numel() for place in places])
        for place, part in zip(places, np.split(joined, ends[:-1]), strict=True):
            words[place] = part
    return words


def head_of(row: DeviceRow, words: np.ndarray) -> np.ndarray:
    """The counts and values of a fetched row as they stand in the table."""
    values = words[:VALUES]
    if row.values == "float32":
        values = values.astype(np.int32).view(np.float32).astype(np.float64).view(np.int64)
    counts = words[VALUES:] @ row.intervals.heads * row.times
    head = np.concatenate([[row.numel * row.times], counts, values])
    if row.implicit_zeros:
        head[[L.NUMEL, L.ZERO]] += row.implicit_zeros
        include_zeros(head, row.implicit_zeros)
    return head


def include_zeros(row: np.ndarray, zeros: int) -> None:
    """Let ``zeros`` more elements, already counted, take part in min, max, mean, rms."""
    values = row.view(np.float64)
    finite = int(row[L.NUMEL] - row[L.NAN] - row[L.POSINF] - row[L.NEGINF])
    share = (finite - zeros) / finite
    if share == 0.0:
        values[[L.MIN, L.MAX, L.MEAN, L.RMS]] = 0.0
        return
    values[L.MIN] = min(values[L.MIN], 0.0)
    values[L.MAX] = max(values[L.MAX], 0.0)
    values[L.MEAN] *= share
    values[L.RMS] *= share**0.5


def bins_of(row: DeviceRow, words: np.ndarray) -> np.ndarray:
    """The bins of a fetched row as they stand in the arena: of positive numbers first."""
    codes = row.intervals.codes
    totals = np.bincount(row.intervals.bins, words[VALUES:], len(codes) + 1)[:-1]  # exact to 2**53
    there = np.flatnonzero(totals)
    bins: np.ndarray = totals[there].astype(np.int64) * row.times << L.CODE_BITS | codes[there]
    return bins


def row_of(t: torch.Tensor, times: int, implicit_zeros: int) -> DeviceRow:
    """Enqueue the row of the real, dense, not empty ``t``; nothing is copied to the host."""
    flat = t.as_strided((t.numel(),), (1,))
    wide = torch.float32 if t.device.type == "mps" else torch.float64
    intervals = ZEROS
    if t.dtype.is_floating_point:
        form = FLOAT64 if t.dtype is torch.float64 else FLOAT32
        flat, intervals = flat.to(form.floating), intervals_of(t.dtype)
        counts = counts_between(edges_on(t.device, t.dtype), flat.view(form.integer))
    else:
        flat = flat.to(wide)
        counts = (flat == 0).sum()[None]
    values = finite_values(flat, wide)
    words = values.view(torch.int64 if wide is torch.float64 else torch.int32).to(torch.int64)
    coding: Literal["float64", "float32"] = "float64" if wide is torch.float64 else "float32"
    joined = torch.cat([words, counts])
    return DeviceRow(joined, intervals, t.numel(), times, implicit_zeros, coding)


def counts_between(edges: torch.Tensor, bits: torch.Tensor) -> torch.Tensor:
    """How many bit patterns lie below, between and above the edges, int64 [edges + 1]."""
    counts = torch.zeros(len(edges) + 1, dtype=torch.int64, device=bits.device)
    one = torch.ones((), dtype=torch.int64, device=bits.device)
    for start in range(0, len(bits), CHUNK):
        places = torch.bucketize(bits[start : start + CHUNK], edges, right=True)
        counts.scatter_add_(0, places, one.expand(len(places)))
    return counts


def finite_values(flat: torch.Tensor, wide: torch.dtype) -> torch.Tensor:
    """Min, max, absmin, mean, rms of finite elements, NaN for none, as ``wide`` [5]."""
    finite, magnitude = flat.isfinite(), flat.abs()
    lowest = torch.where(finite, flat, math.inf).amin()
    highest = torch.where(finite, flat, -math.inf).amax()
    smallest = torch.where(finite & (flat != 0), magnitude, math.inf).amin()
    count = finite.sum()
    scale = torch.ones((), dtype=wide, device=flat.device)
    if flat.dtype is torch.float64:  # keeps squares from overflowing and from underflowing
        exponent = torch.frexp(
            torch.maximum(lowest.abs(), highest.abs()).nan_to_num(posinf=1.0)
        ).exponent
        scale = torch.ldexp(scale, -exponent.clamp(-1022, 1022))
    scaled = torch.where(finite, flat, 0.0).to(wide) * scale
    mean = scaled.sum() / count / scale
    rms = (scaled.square().sum() / count).sqrt() / scale
    values = torch.stack([lowest.to(wide), highest.to(wide), smallest.to(wide), mean, rms])
    values = torch.where(count > 0, values, math.nan) + 0.0  # -0.0 becomes 0.0
    return torch.where(values.isinf(), math.nan, values)  # only absmin of zeros
