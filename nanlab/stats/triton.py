"""A row computed on a CUDA device by one Triton kernel; imported only where there are both."""

# mypy: ignore-errors
# The types of compiled code are Triton's.

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from functools import cache

import torch
import triton
import triton.language as tl

from nanlab.stats import layout as L
from nanlab.stats.device import FLOAT32, HEAD, DeviceRow, bits32

DTYPES = frozenset({torch.float16, torch.bfloat16, torch.float32})
BLOCK = 1024
WARPS = 8
MOST_PROGRAMS = 1024  # enough to fill the largest device; each adds its result to the row once

# What the kernel leaves in the places of min, max, absmin, mean and rms: order keys, a magnitude's
# bits, two sums.
NO_LOWEST, NO_HIGHEST = 0x7FFFFFFF, -0x80000000


def constant(value: int) -> tl.constexpr:
    """A number that a kernel may take from the module."""
    return tl.constexpr(value)


_MAGNITUDE, _INF = constant(FLOAT32.magnitude), constant(FLOAT32.inf)
_HALF_ZERO, _HALF_NORMAL = constant(FLOAT32.half_zero), constant(FLOAT32.half_normal)
_HALF_INF = constant(FLOAT32.half_inf)
_LOWEST, _HIGHEST = constant(NO_LOWEST), constant(NO_HIGHEST)
_SMALLEST_NORMAL = constant(1 << FLOAT32.mantissa_bits)
_MANTISSA_BITS, _BIAS = constant(FLOAT32.mantissa_bits), constant(FLOAT32.bias)
_SPAN, _FIRST_NORMAL = constant(FLOAT32.span), constant(1 - FLOAT32.bias - FLOAT32.lowest_exponent)
_HEAD, _ZERO, _NAN, _POSINF, _NEGINF = map(constant, (HEAD, L.ZERO, L.NAN, L.POSINF, L.NEGINF))
_SUBNORMAL, _FP16_ZERO = constant(L.SUBNORMAL), constant(L.FP16_ZERO)
_FP16_SUBNORMAL, _FP16_INF = constant(L.FP16_SUBNORMAL), constant(L.FP16_INF)
_MIN, _MAX, _ABSMIN, _MEAN, _RMS = map(constant, (L.MIN, L.MAX, L.ABSMIN, L.MEAN, L.RMS))


@triton.jit
def add_count(words, place, counts):
    """Add the sum of ``counts`` to a word of the row."""
    tl.atomic_add(words + place, tl.sum(counts.to(tl.int64)))


@triton.jit
def add_counts(words, zero, nan, posinf, neginf, subnormal, flushed, below, above):
    """Add every count of one program to the row."""
    add_count(words, _ZERO, zero)
    add_count(words, _NAN, nan)
    add_count(words, _POSINF, posinf)
    add_count(words, _NEGINF, neginf)
    add_count(words, _SUBNORMAL, subnormal)
    add_count(words, _FP16_ZERO, flushed)
    add_count(words, _FP16_SUBNORMAL, below)
    add_count(words, _FP16_INF, above)


@triton.jit
def add_subnormals(words, bits, magnitude):
    """Count float32 subnormals at their true exponents."""
    subnormal = (magnitude > 0) & (magnitude < _SMALLEST_NORMAL)
    leading = (magnitude.to(tl.float32).to(tl.int32, bitcast=True) >> _MANTISSA_BITS) - _BIAS
    place = _HEAD + tl.where(bits < 0, _SPAN, 0) + leading
    tl.atomic_add(words + place, tl.full(bits.shape, 1, tl.int64), mask=subnormal)


@triton.jit
def add_normals(words, histogram):
    """Add the bins of sign and exponent, but for those of 0, NaN and inf, to the row."""
    place = tl.arange(0, 512)
    exponent = place & 255
    target = _HEAD + (place >> 8) * _SPAN + exponent - 1 + _FIRST_NORMAL
    wanted = (exponent > 0) & (exponent < 255) & (histogram > 0)
    tl.atomic_add(words + target, histogram.to(tl.int64), mask=wanted)


@triton.jit
def summarise(source, words, sums, numel, own_normal, BFLOAT16: tl.constexpr, BLOCK: tl.constexpr):
    """Add the numbers of ``numel`` elements to the row; ``sums`` is the row seen as float64."""
    first = tl.program_id(0).to(tl.int64) * BLOCK
    step = tl.num_programs(0).to(tl.int64) * BLOCK
    lane = tl.arange(0, BLOCK)
    none = tl.zeros([BLOCK], tl.int32)
    zero, nan, posinf, neginf = none, none, none, none
    subnormal, flushed, below, above = none, none, none, none
    lowest = tl.full([BLOCK], _LOWEST, tl.int32)
    highest = tl.full([BLOCK], _HIGHEST, tl.int32)
    smallest = tl.full([BLOCK], _LOWEST, tl.int32)
    total = tl.zeros([BLOCK], tl.float64)
    squares = tl.zeros([BLOCK], tl.float64)
    histogram = tl.zeros([512], tl.int32)
    for start in range(first, numel, step):
        inside = start + lane < numel
        loaded = tl.load(source + start + lane, mask=inside, other=0)
        if BFLOAT16:  # as int16: the upper half of a float32, which no conversion can flush
            bits = loaded.to(tl.int32) << 16
        else:
            bits = loaded.to(tl.float32).to(tl.int32, bitcast=True)
        value = bits.to(tl.float32, bitcast=True)
        magnitude = bits & _MAGNITUDE
        finite = (magnitude < _INF) & inside
        nonzero = (magnitude > 0) & finite
        key = bits ^ ((bits >> 31) & _MAGNITUDE)
        zero += ((magnitude == 0) & inside).to(tl.int32)
        nan += (magnitude > _INF).to(tl.int32)
        posinf += (bits == _INF).to(tl.int32)
        neginf += ((magnitude == _INF) & (bits < 0)).to(tl.int32)
        subnormal += (nonzero & (magnitude < own_normal)).to(tl.int32)
        flushed += (nonzero & (magnitude <= _HALF_ZERO)).to(tl.int32)
        below += (finite & (magnitude > _HALF_ZERO) & (magnitude < _HALF_NORMAL)).to(tl.int32)
        above += (finite & (magnitude >= _HALF_INF)).to(tl.int32)
        lowest = tl.minimum(lowest, tl.where(finite, key, _LOWEST))
        highest = tl.maximum(highest, tl.where(finite, key, _HIGHEST))
        smallest = tl.minimum(smallest, tl.where(nonzero, magnitude, _LOWEST))
        wide = tl.where(finite, value, 0.0).to(tl.float64)
        total += wide
        squares += wide * wide
        histogram += tl.histogram((bits >> _MANTISSA_BITS) & 511, 512)
        if tl.min(tl.where(nonzero, magnitude, _LOWEST)) < _SMALLEST_NORMAL:
            add_subnormals(words, bits, magnitude)
    add_counts(words, zero, nan, posinf, neginf, subnormal, flushed, below, above)
    tl.atomic_min(words + _MIN, tl.min(lowest).to(tl.int64))
    tl.atomic_max(words + _MAX, tl.max(highest).to(tl.int64))
    tl.atomic_min(words + _ABSMIN, tl.min(smallest).to(tl.int64))
    tl.atomic_add(sums + _MEAN, tl.sum(total))
    tl.atomic_add(sums + _RMS, tl.sum(squares))
    add_normals(words, histogram)


@cache
def empty_row(device: torch.device) -> torch.Tensor:
    """A row before any element was added."""
    words = torch.zeros(HEAD + 2 * FLOAT32.span, dtype=torch.int64)
    words[[L.MIN, L.MAX, L.ABSMIN]] = torch.tensor([NO_LOWEST, NO_HIGHEST, NO_LOWEST])
    return words.to(device)


def row_of(t: torch.Tensor, times: int, implicit_zeros: int) -> DeviceRow:
    """Enqueue the row of the real, dense, not empty elements ``t`` of one of DTYPES; the host does
    not wait.

    Sums are added in the order in which the programs of the kernel end: mean and rms may differ in
    the last bits from run to run, the counts never.
    """
    words = empty_row(t.device).clone()
    programs = min(MOST_PROGRAMS, triton.cdiv(t.numel(), BLOCK))
    flat = t.as_strided((t.numel(),), (1,))
    brain = t.dtype is torch.bfloat16
    source = flat.view(torch.int16) if brain else flat
    own_normal = bits32(torch.finfo(t.dtype).smallest_normal)
    with on_device(t.device):
        summarise[(programs,)](
            source,
            words,
            words.view(torch.float64),
            t.numel(),
            own_normal,
            brain,
            BLOCK,
            num_warps=WARPS,
        )
    return DeviceRow(words, t.numel(), FLOAT32.lowest_exponent, times, implicit_zeros, "keys")


def on_device(device: torch.device) -> AbstractContextManager[object]:
    """Launch where the tensor is; Triton's interpreter runs on the CPU."""
    return torch.cuda.device(device) if device.type == "cuda" else nullcontext()
