"""The numba kernel that summarises float64 memory, and integers widened block by block."""

from __future__ import annotations

import math

import numpy as np

from nanlab.stats import _layout as L
from nanlab.stats._emit import append_bin, append_subnormals, begin_row, count_subnormal, end_row, is_full
from nanlab.stats._jit import (
    fast_helper,
    helper,
    kernel,
    pointer_float64,
    pointer_int8,
    pointer_int16,
    pointer_int32,
    pointer_int64,
    pointer_uint8,
    pointer_uint16,
    pointer_uint32,
    pointer_uint64,
)

FLOAT64, UINT8, INT8, INT16, INT32, INT64, UINT16, UINT32, UINT64 = range(9)  # kinds; bool is read as UINT8

LANE = 4096  # bins of one histogram: sign and exponent; two of them take turns
# Limits of the cast to float16. It goes by way of float32, so each lies half a float32 ulp before that of float32.
HALF_ZERO = 2.0**-25 + 2.0**-49
HALF_NORMAL = 2.0**-14 - 2.0**-25 - 2.0**-39
HALF_INF = 65520.0 - 2.0**-9
SMALLEST_NORMAL = 2.0**-1022
SAFE_SQUARE = 2.0**400  # magnitudes up to here, and down to its inverse, may be squared and summed as they are


@helper
def copy_block(source, size, block):
    """Widen ``size`` integers to float64."""
    for i in range(size):
        block[i] = np.float64(source[i])


@helper
def load_block(address, first, size, kind, state):
    """Address of ``size`` float64 elements from ``first`` on, widened where they are integers."""
    if kind == FLOAT64:
        return address + 8 * first
    block = pointer_float64(state[L.BLOCK_ADDRESS])
    if kind == UINT8:
        copy_block(pointer_uint8(address + first), size, block)
    elif kind == INT8:
        copy_block(pointer_int8(address + first), size, block)
    elif kind == INT16:
        copy_block(pointer_int16(address + 2 * first), size, block)
    elif kind == INT32:
        copy_block(pointer_int32(address + 4 * first), size, block)
    elif kind == INT64:
        copy_block(pointer_int64(address + 8 * first), size, block)
    elif kind == UINT16:
        copy_block(pointer_uint16(address + 2 * first), size, block)
    elif kind == UINT32:
        copy_block(pointer_uint32(address + 4 * first), size, block)
    else:
        copy_block(pointer_uint64(address + 8 * first), size, block)
    return state[L.BLOCK_ADDRESS]


@helper
def count_exponents(bits, size, scratch):
    """Histogram of sign and exponent; subnormals at their true exponents; elements below float64's normal range."""
    subnormals = 0
    for i in range(size):
        word = bits[i]
        place = np.int64(word >> np.uint64(52))
        scratch[LANE * (i & 1) + place] += 1
        if place & 2047 == 0:
            mantissa = np.int64(word & np.uint64(0xFFFFFFFFFFFFF))
            if mantissa != 0:
                subnormals += 1
                count_subnormal(mantissa, place >> 11, scratch)
    return subnormals


@helper
def extent(values, size):
    """Least and greatest finite value, least non-zero magnitude, and counts: zero, NaN, inf, -inf."""
    lowest, highest, smallest = math.inf, -math.inf, math.inf
    zero = nan = posinf = neginf = 0
    for i in range(size):
        value = values[i]
        magnitude = abs(value)
        finite = magnitude < math.inf
        lowest = min(lowest, value if finite else math.inf)
        highest = max(highest, value if finite else -math.inf)
        smallest = min(smallest, magnitude if finite and value != 0.0 else math.inf)
        zero += value == 0.0
        nan += value != value
        posinf += value == math.inf
        neginf += value == -math.inf
    return lowest, highest, smallest, zero, nan, posinf, neginf


@helper
def half_counts(values, size):
    """How many elements float16 flushes to zero (zeros too), holds below its normal range (those too), overflows."""
    flushed = below = above = 0
    for i in range(size):
        magnitude = abs(values[i])
        flushed += magnitude <= HALF_ZERO
        below += magnitude < HALF_NORMAL
        above += magnitude >= HALF_INF
    return flushed, below, above


@helper
def moments(values, size, scale):
    """Sum and sum of squares of the finite elements times ``scale``."""
    total = squares = 0.0
    for i in range(size):
        value = values[i] * scale if abs(values[i]) < math.inf else 0.0
        total += value
        squares += value * value
    return total, squares


@helper
def scaled_moments(address, size, greatest):
    """Power of two that brings ``greatest`` near 1, and the moments of all elements times it."""
    exponent = math.frexp(greatest)[1]
    scale = math.ldexp(1.0, max(-1022, min(1022, -exponent)))
    total, squares = moments(pointer_float64(address), size, scale)
    return scale, total, squares


@helper
def write_values(state, finite, lowest, highest, smallest, mean, rms):
    """The five numbers over the finite elements; NaN where there is no such element."""
    values = pointer_float64(state[L.ROWS_ADDRESS] + state[L.NEXT_ROW] * (8 * L.WIDTH))
    values[L.MIN] = lowest + 0.0 if finite > 0 else math.nan  # -0.0 becomes 0.0
    values[L.MAX] = highest + 0.0 if finite > 0 else math.nan
    values[L.ABSMIN] = smallest if smallest < math.inf else math.nan
    values[L.MEAN] = mean if finite > 0 else math.nan
    values[L.RMS] = rms if finite > 0 else math.nan


@helper
def append_normals(state, scratch, first, last):
    """Move the bins of the biased exponents ``first`` to ``last`` from the scratch to the arena."""
    for negative in range(2):
        for exponent in range(first, last + 1):
            place = negative * 2048 + exponent
            if 0 < exponent < 2047:
                append_bin(state, exponent - 1023, negative, scratch[place] + scratch[LANE + place])
            scratch[place] = 0
            scratch[LANE + place] = 0


@helper
def append_bins(state, scratch, smallest, greatest, subnormal):
    """Move every bin of a float64 tensor from the scratch to the arena."""
    append_normals(state, scratch, 0, 0)
    append_normals(state, scratch, 2047, 2047)
    if subnormal > 0:
        append_subnormals(state, scratch, -1074)
    if greatest >= SMALLEST_NORMAL:
        first = max(1, math.frexp(smallest)[1] + 1022)
        append_normals(state, scratch, first, math.frexp(greatest)[1] + 1022)


@kernel
def summarise64(address, size, kind, state_address):
    """Write the row and the bins of ``size`` elements; the count of NaN and inf, or FULL with nothing written."""
    state = pointer_int64(state_address)
    if is_full(state):
        return L.FULL
    scratch = pointer_int64(state[L.SCRATCH_ADDRESS])
    lowest, highest, smallest = math.inf, -math.inf, math.inf
    zero = nan = posinf = neginf = flushed = below = above = subnormal = 0
    total = squares = 0.0
    for first in range(0, size, L.BLOCK):
        count = min(L.BLOCK, size - first)
        block = load_block(address, first, count, kind, state)
        values = pointer_float64(block)
        low, high, small, zeros, nans, posinfs, neginfs = extent(values, count)
        lowest, highest, smallest = min(lowest, low), max(highest, high), min(smallest, small)
        zero, nan, posinf, neginf = zero + zeros, nan + nans, posinf + posinfs, neginf + neginfs
        block_total, block_squares = moments(values, count, 1.0)
        total += block_total
        squares += block_squares
        if kind == FLOAT64:
            subnormal += count_exponents(pointer_uint64(block), count, scratch)
            counts = half_counts(values, count)
            flushed += counts[0] - zeros
            below += counts[1] - counts[0]
            above += counts[2] - posinfs - neginfs
    finite = size - nan - posinf - neginf
    greatest = max(abs(lowest), abs(highest)) if finite > 0 else 0.0
    scale = 1.0
    if kind == FLOAT64 and greatest > 0.0 and not 1.0 / SAFE_SQUARE < greatest < SAFE_SQUARE:
        scale, total, squares = scaled_moments(address, size, greatest)
    row = begin_row(state, size)
    times = state[L.TIMES]
    row[L.NAN], row[L.POSINF], row[L.NEGINF], row[L.ZERO] = nan * times, posinf * times, neginf * times, zero * times
    row[L.SUBNORMAL], row[L.FP16_ZERO] = subnormal * times, flushed * times
    row[L.FP16_SUBNORMAL], row[L.FP16_INF] = below * times, above * times
    divisor = max(finite, 1)
    write_values(state, finite, lowest, highest, smallest, total / divisor / scale,
                 math.sqrt(squares / divisor) / scale)
    if kind == FLOAT64:
        append_bins(state, scratch, smallest, greatest, subnormal)
    return end_row(state, row)
