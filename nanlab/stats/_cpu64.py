"""The numba kernel that summarises float64 memory."""

# mypy: ignore-errors
# The types of compiled code are numba's, inferred from the signature that the kernels are compiled
# for.

from __future__ import annotations

import math

import numpy as np

from nanlab.stats import _layout as L
from nanlab.stats._emit import (
    append_bin,
    append_subnormals,
    begin_row,
    count_subnormal,
    end_row,
    is_full,
    write_counts,
)
from nanlab.stats._jit import (
    fast_helper,
    float64_from,
    helper,
    inlined,
    kernel,
    pointer_float64,
    pointer_int64,
    pointer_uint32,
    pointer_uint64,
    prefetch,
)

# float64 bits without the sign, which sort like magnitudes
MAGNITUDE = np.uint64(0x7FFFFFFFFFFFFFFF)
INF = np.uint64(0x7FF0000000000000)
SMALLEST_NORMAL = np.uint64(1 << 52)
# Limits of the cast to float16. It goes by way of float32, so each lies half a float32 ulp from
# that of float32.
HALF_ZERO = np.float64(2.0**-25 + 2.0**-49).view(np.uint64)
HALF_NORMAL = np.float64(2.0**-14 - 2.0**-25 - 2.0**-39).view(np.uint64)
HALF_INF = np.float64(65520.0 - 2.0**-9).view(np.uint64)
NO_LOWEST, NO_HIGHEST = np.int64(0x7FFFFFFFFFFFFFFF), np.int64(-0x8000000000000000)
NO_SMALLEST = np.uint64(0xFFFFFFFFFFFFFFFF)
LANE = 4096  # bins of one uint32 histogram: sign and exponent; four of them take turns
ONE = np.uint32(1)
# magnitudes up to here, and down to its inverse, may be squared and summed as they are
SAFE_SQUARE = 2.0**400


@helper
def order_key(bits):
    """An int64 that sorts like the float64 with these bits; its own inverse."""
    signed = np.int64(bits)
    return signed ^ ((signed >> 63) & np.int64(0x7FFFFFFFFFFFFFFF))


@helper
def count_exponents(block, size, bins):
    """Histogram of sign and exponent; four copies take turns, so that no addition waits for the one
    before."""
    words = pointer_uint64(block)
    shift = np.uint64(52)
    whole = size & ~3
    for i in range(0, whole, 4):
        prefetch(block + 8 * (i + L.BLOCK))
        bins[np.int64(words[i] >> shift)] += ONE
        bins[LANE + np.int64(words[i + 1] >> shift)] += ONE
        bins[2 * LANE + np.int64(words[i + 2] >> shift)] += ONE
        bins[3 * LANE + np.int64(words[i + 3] >> shift)] += ONE
    for i in range(whole, size):
        bins[np.int64(words[i] >> shift)] += ONE


@helper
def finite_extent(bits, size):
    """Over the finite elements: least and greatest order key, least magnitude minus 1 (zero wraps
    round to the greatest); then the counts of zeros, and of NaN and infinities."""
    lowest, highest, smallest, zeros, nonfinite = NO_LOWEST, NO_HIGHEST, NO_SMALLEST, 0, 0
    for i in range(size):
        magnitude = bits[i] & MAGNITUDE
        key = order_key(bits[i])
        finite = magnitude < INF
        # selected first, compared then: so the loop has no branch
        low = key if finite else NO_LOWEST
        high = key if finite else NO_HIGHEST
        small = magnitude - np.uint64(1) if finite else NO_SMALLEST
        lowest = low if low < lowest else lowest
        highest = high if high > highest else highest
        smallest = small if small < smallest else smallest
        zeros += np.int64(magnitude == np.uint64(0))
        nonfinite += np.int64(magnitude >= INF)
    return lowest, highest, smallest, zeros, nonfinite


@helper
def count_infinities(values, size):
    """How many elements are inf, and how many -inf."""
    posinf = neginf = 0
    for i in range(size):
        posinf += np.int64(values[i] == math.inf)
        neginf += np.int64(values[i] == -math.inf)
    return posinf, neginf


@helper
def half_counts(bits, size):
    """How many magnitudes float16 flushes to zero, holds below its normal range, overflows; how
    many are subnormal."""
    flushed = below = above = subnormal = 0
    for i in range(size):
        magnitude = bits[i] & MAGNITUDE
        flushed += np.int64(magnitude <= HALF_ZERO)
        below += np.int64(magnitude < HALF_NORMAL)
        above += np.int64(magnitude >= HALF_INF)
        subnormal += np.int64(magnitude < SMALLEST_NORMAL)
    return flushed, below, above, subnormal


@helper
def count_subnormals(bits, size, scratch):
    """Bin float64 subnormals at their true exponents."""
    for i in range(size):
        magnitude = bits[i] & MAGNITUDE
        if np.uint64(0) < magnitude < SMALLEST_NORMAL:
            count_subnormal(np.int64(magnitude), np.int64(bits[i] >> np.uint64(63)), scratch)


@fast_helper
def finite_moments(bits, size, scale):
    """Sum and sum of squares of the finite elements times ``scale``."""
    total, squares = 0.0, 0.0
    for i in range(size):
        finite = bits[i] & MAGNITUDE < INF
        value = float64_from(bits[i] if finite else np.uint64(0)) * scale
        total += value
        squares += value * value
    return total, squares


@helper
def scaled_moments(address, size, greatest):
    """Power of two that brings ``greatest`` near 1, and the moments of all elements times it."""
    exponent = -math.frexp(greatest)[1]
    exponent = 1022 if exponent > 1022 else (-1022 if exponent < -1022 else exponent)
    scale = math.ldexp(1.0, exponent)
    total, squares = finite_moments(pointer_uint64(address), size, scale)
    return scale, total, squares


@helper
def magnitude_of(lowest, highest):
    """Bits of the greatest magnitude between two order keys."""
    least, most = (
        np.uint64(order_key(lowest)) & MAGNITUDE,
        np.uint64(order_key(highest)) & MAGNITUDE,
    )
    return least if least > most else most


@inlined
def write_values(state, finite, lowest, highest, smallest, mean, rms):
    """The five numbers over the finite elements; NaN where there is no such element."""
    values = pointer_float64(state[L.ROWS_ADDRESS] + state[L.NEXT_ROW] * (8 * L.WIDTH))
    for word in range(L.MIN, L.RMS + 1):
        values[word] = math.nan
    if finite > 0:
        values[L.MIN] = float64_from(np.uint64(order_key(lowest))) + 0.0  # -0.0 becomes 0.0
        values[L.MAX] = float64_from(np.uint64(order_key(highest))) + 0.0
        values[L.MEAN] = mean
        values[L.RMS] = rms
    if smallest != NO_SMALLEST:
        values[L.ABSMIN] = float64_from(smallest + np.uint64(1))


@helper
def append_bins(state, smallest, greatest):
    """Move every bin of a float64 tensor to the arena, and clear those of 0, NaN and inf."""
    bins = pointer_uint32(state[L.SCRATCH_ADDRESS])
    first = np.int64(1)
    if smallest < SMALLEST_NORMAL - np.uint64(1):
        append_subnormals(state, pointer_int64(state[L.SCRATCH_ADDRESS]), -1074)
    elif smallest != NO_SMALLEST:
        first = np.int64((smallest + np.uint64(1)) >> np.uint64(52))
    for negative in range(2):
        for lane in range(4):
            bins[lane * LANE + negative * 2048] = np.uint32(0)
            bins[lane * LANE + negative * 2048 + 2047] = np.uint32(0)
        for exponent in range(first, np.int64(greatest >> np.uint64(52)) + 1):
            count = np.int64(0)
            for lane in range(4):
                place = lane * LANE + negative * 2048 + exponent
                count += np.int64(bins[place])
                bins[place] = np.uint32(0)
            append_bin(state, exponent - 1023, negative, count)


@kernel
def summarise64(address, size, kind, state_address):
    """Write the row and the bins of ``size`` elements, all of the one ``kind``; the count of NaN
    and inf, or FULL with nothing written."""
    state = pointer_int64(state_address)
    if is_full(state):
        return L.FULL
    lowest, highest, smallest = NO_LOWEST, NO_HIGHEST, NO_SMALLEST
    zero = nan = posinf = neginf = flushed = below = above = subnormal = 0
    total = squares = 0.0
    for first in range(0, size, L.BLOCK):
        count = L.BLOCK if size - first > L.BLOCK else size - first
        block = address + 8 * first
        bits = pointer_uint64(block)
        count_exponents(block, count, pointer_uint32(state[L.SCRATCH_ADDRESS]))
        low, high, small, zeros, nonfinite = finite_extent(bits, count)
        if nonfinite > 0:
            infinities = count_infinities(pointer_float64(block), count)
            posinf, neginf = posinf + infinities[0], neginf + infinities[1]
            nan += nonfinite - infinities[0] - infinities[1]
        moments = finite_moments(bits, count, 1.0)
        total, squares = total + moments[0], squares + moments[1]
        lowest = low if low < lowest else lowest
        highest = high if high > highest else highest
        smallest = small if small < smallest else smallest
        zero += zeros
        if zeros + nonfinite < count and (
            small < HALF_NORMAL or magnitude_of(low, high) >= HALF_INF
        ):
            counts = half_counts(bits, count)
            flushed += counts[0] - zeros
            below += counts[1] - counts[0]
            above += counts[2] - nonfinite
            subnormal += counts[3] - zeros
            if small < SMALLEST_NORMAL - np.uint64(1):
                count_subnormals(bits, count, pointer_int64(state[L.SCRATCH_ADDRESS]))
    finite = size - nan - posinf - neginf
    greatest = magnitude_of(lowest, highest) if finite > 0 else np.uint64(0)
    scale, size_of_greatest = 1.0, float64_from(greatest)
    if greatest > np.uint64(0) and not 1.0 / SAFE_SQUARE < size_of_greatest < SAFE_SQUARE:
        scale, total, squares = scaled_moments(address, size, size_of_greatest)
    row = begin_row(state, size)
    write_counts(state, row, zero, nan, posinf, neginf, subnormal, flushed, below, above)
    divisor = finite if finite > 0 else 1
    mean, rms = total / divisor / scale, math.sqrt(squares / divisor) / scale
    write_values(state, finite, lowest, highest, smallest, mean, rms)
    append_bins(state, smallest, greatest)
    return end_row(state, row)
