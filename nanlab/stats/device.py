"""Rows of statistics computed on a device by operations of torch, and their way to the host."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch

from nanlab.stats import layout as L

# Rows computed on a device: their form there, and their way into the table.

HEAD = L.RMS + 1  # words before the bins: the counts, then the values as float64 bits


@dataclass(frozen=True, slots=True)
class DeviceRow:
    """A row computed by operations of torch or a kernel, perhaps not finished yet."""

    # int64 [HEAD + 2 * span]: counts, values, bins of positive, then of negative exponents
    words: torch.Tensor
    numel: int  # elements that were read; the word of that name is not filled in
    lowest_exponent: int  # of the first bin
    times: int  # how often each element occurs
    implicit_zeros: int  # of a sparse tensor
    # bits of floats; or order keys of float32 and sums in float64
    values: Literal["float64", "float32", "keys"]


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
    head = words[:HEAD].copy()
    head[L.NUMEL] = row.numel
    if row.values == "float32":
        head[L.MIN :] = (
            head[L.MIN :].astype(np.int32).view(np.float32).astype(np.float64).view(np.int64)
        )
    elif row.values == "keys":
        resolve_keys(head)
    head[: L.MIN] *= row.times
    if row.implicit_zeros:
        head[[L.NUMEL, L.ZERO]] += row.implicit_zeros
        include_zeros(head, row.implicit_zeros)
    return head


def resolve_keys(head: np.ndarray) -> None:
    """Turn order keys into min, max, absmin; sums into mean, rms; NaN: no such element."""
    values = head.view(np.float64)
    finite = int(head[L.NUMEL] - head[L.NAN] - head[L.POSINF] - head[L.NEGINF])
    if finite == 0:
        values[L.MIN :] = np.nan
        return
    keys = head[[L.MIN, L.MAX, L.ABSMIN]].astype(np.int32)
    values[[L.MIN, L.MAX, L.ABSMIN]] = (keys ^ ((keys >> 31) & 0x7FFFFFFF)).view(np.float32) + 0.0
    if finite == head[L.ZERO]:
        values[L.ABSMIN] = np.nan
    values[L.MEAN] /= finite
    values[L.RMS] = (values[L.RMS] / finite) ** 0.5


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
    """The bins of a fetched row as they stand in the arena."""
    counts = words[HEAD:]
    places = np.flatnonzero(counts)
    span = len(counts) // 2
    negative = places >= span
    exponents = places - span * negative + row.lowest_exponent
    return (
        counts[places] * row.times << L.CODE_BITS | (exponents + L.EXPONENT_OFFSET) << 1 | negative
    )


# A row computed by plain operations of torch, on any device, without waiting for it.

CHUNK = 1 << 22  # elements binned at a time: their int64 places need twice the memory of float32


@dataclass(frozen=True, slots=True)
class Bits:
    """Bit patterns of one width, sign dropped: they sort like the magnitudes they stand for."""

    integer: torch.dtype
    magnitude: int  # mask
    inf: int
    mantissa_bits: int
    bias: int
    half_zero: int  # float16 flushes to zero up to here
    half_normal: int  # float16 rounds to a normal value from here
    half_inf: int  # float16 overflows from here

    @property
    def lowest_exponent(self) -> int:
        """Of the smallest subnormal."""
        return 1 - self.bias - self.mantissa_bits

    @property
    def span(self) -> int:
        """How many exponents there are."""
        return self.bias - self.lowest_exponent + 1


def bits32(value: float) -> int:
    """Bits of a float32 as an integer."""
    return int(np.float32(value).view(np.int32))


def bits64(value: float) -> int:
    """Bits of a float64 as an integer."""
    return int(np.float64(value).view(np.int64))


FLOAT32 = Bits(
    torch.int32,
    0x7FFFFFFF,
    0x7F800000,
    23,
    127,
    bits32(2.0**-25),
    bits32(2.0**-14 - 2.0**-25),
    bits32(65520.0),
)
# torch casts float64 to float16 by way of float32: each limit lies half a float32 ulp lower, or
# higher at the zero
FLOAT64 = Bits(
    torch.int64,
    0x7FFFFFFFFFFFFFFF,
    0x7FF0000000000000,
    52,
    1023,
    bits64(2.0**-25 + 2.0**-49),
    bits64(2.0**-14 - 2.0**-25 - 2.0**-39),
    bits64(65520.0 - 2.0**-9),
)


def row_of(t: torch.Tensor, times: int, implicit_zeros: int) -> DeviceRow:
    """Enqueue the row of the real, dense, not empty ``t``; nothing is copied to the host."""
    flat = t.as_strided((t.numel(),), (1,))
    wide = torch.float32 if t.device.type == "mps" else torch.float64
    lowest = 0
    bins = torch.empty(0, dtype=torch.int64, device=t.device)
    if t.dtype.is_floating_point:
        flat = flat.to(torch.float64 if t.dtype is torch.float64 else torch.float32)
        form = FLOAT64 if t.dtype is torch.float64 else FLOAT32
        bits = flat.view(form.integer)
        smallest_normal = torch.finfo(t.dtype).smallest_normal
        own_normal = bits64(smallest_normal) if form is FLOAT64 else bits32(smallest_normal)
        finite = (bits & form.magnitude) < form.inf
        counts = float_counts(bits, form, own_normal)
        lowest, bins = form.lowest_exponent, exponent_bins(bits, form)
    else:
        flat = flat.to(wide)
        finite = torch.ones_like(flat, dtype=torch.bool)
        counts = torch.zeros(8, dtype=torch.int64, device=t.device)
        counts[3] = (flat == 0).sum()
    values = finite_values(flat, finite, wide)
    words = (
        values.view(torch.int64)
        if wide is torch.float64
        else values.view(torch.int32).to(torch.int64)
    )
    joined = torch.cat([torch.zeros_like(words[:1]), counts, words, bins])
    coding: Literal["float64", "float32"] = "float64" if wide is torch.float64 else "float32"
    return DeviceRow(joined, t.numel(), lowest, times, implicit_zeros, coding)


def float_counts(bits: torch.Tensor, form: Bits, own_normal: int) -> torch.Tensor:
    """The counts from nan to fp16_inf, int64 [8]."""
    magnitude = bits & form.magnitude
    zero = (magnitude == 0).sum()
    infinite = (magnitude == form.inf).sum()
    posinf = (bits == form.inf).sum()
    nan = (magnitude > form.inf).sum()
    flushed = (magnitude <= form.half_zero).sum()
    below = (magnitude < form.half_normal).sum()
    above = (magnitude >= form.half_inf).sum()
    subnormal = (magnitude < own_normal).sum() - zero
    return torch.stack(
        [
            nan,
            posinf,
            infinite - posinf,
            zero,
            subnormal,
            flushed - zero,
            below - flushed,
            above - infinite - nan,
        ]
    )


def exponent_bins(bits: torch.Tensor, form: Bits) -> torch.Tensor:
    """Counts per exponent floor(log2|x|), of positive, then of negative: int64 [2 * span]."""
    # the last: zeros, NaN and inf
    bins = torch.zeros(2 * form.span + 1, dtype=torch.int64, device=bits.device)
    one = torch.ones((), dtype=torch.int64, device=bits.device)
    for start in range(0, len(bits), CHUNK):
        part = bits[start : start + CHUNK]
        magnitude = part & form.magnitude
        normal = (magnitude >> form.mantissa_bits) - form.bias
        as_float = magnitude.to(torch.float64 if form is FLOAT64 else torch.float32).view(
            form.integer
        )
        subnormal = (as_float >> form.mantissa_bits) - form.bias + form.lowest_exponent
        exponent = torch.where(magnitude < 1 << form.mantissa_bits, subnormal, normal)
        place = exponent - form.lowest_exponent + (part < 0) * form.span
        place = torch.where((magnitude == 0) | (magnitude >= form.inf), 2 * form.span, place)
        bins.scatter_add_(0, place.to(torch.int64), one.expand(len(part)))
    return bins[:-1]


def finite_values(flat: torch.Tensor, finite: torch.Tensor, wide: torch.dtype) -> torch.Tensor:
    """Min, max, absmin, mean, rms of finite elements, NaN for none, as ``wide`` [5]."""
    magnitude = flat.abs()
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
