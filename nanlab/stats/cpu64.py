"""The numba kernels that summarise float64, integers and booleans."""

# mypy: ignore-errors
# The types of compiled code are numba's, inferred from the signature that the kernels are compiled
# for.

from __future__ import annotations

import math

import numpy as np

from nanlab.stats import layout as L
from nanlab.stats.jit import (
    append_bin,
    append_subnormals,
    begin_row,
    count_subnormal,
    end_row,
    fast_helper,
    float64_from,
    greatest,
    helper,
    inlined,
    is_full,
    kernel,
    least,
    pointer_float64,
    pointer_int8,
    pointer_int16,
    pointer_int32,
    pointer_int64,
    pointer_uint8,
    pointer_uint32,
    pointer_uint64,
    prefetch,
    write_counts,
)

# The numba kernel that summarises float64 memory.

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
    """Histogram of sign and exponent; four copies take turns: no addition waits."""
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
    """Finite elements: least, greatest key, least magnitude - 1; zeros; NaN and infinities."""
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
    """Magnitudes that float16 flushes, holds as subnormal, overflows; those subnormal here."""
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
    """Write row and bins of ``size`` elements of one ``kind``; NaN and inf, or FULL unwritten."""
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


# The numba kernel that summarises integers and booleans: range, zeros, mean and mean square.

LEAST, MOST = np.int64(-0x8000000000000000), np.int64(0x7FFFFFFFFFFFFFFF)
NO_MAGNITUDE = np.uint64(0xFFFFFFFFFFFFFFFF)
ZERO = np.uint32(0)


@helper
def take_bytes(values, size):
    """Of at most 2^16 bytes: least, greatest, least magnitude - 1, zeros, sum, squares."""
    low, high, less = np.uint8(255), np.uint8(0), np.uint8(255)
    zeros, total, squares = ZERO, ZERO, ZERO
    for i in range(size):
        value = values[i]
        wide = np.uint32(value)
        below = np.uint8(wide - ONE)
        low = value if value < low else low
        high = value if value > high else high
        less = below if below < less else less
        zeros = np.uint32(zeros + np.uint32(wide == ZERO))
        total = np.uint32(total + wide)
        squares = np.uint32(squares + np.uint32(wide * wide))
    magnitude = NO_MAGNITUDE if less == np.uint8(255) else np.uint64(less)
    return (
        np.int64(low),
        np.int64(high),
        magnitude,
        np.int64(zeros),
        np.float64(total),
        np.float64(squares),
    )


@fast_helper
def take_words(values, size):
    """The same of 64-bit integers; sums in float64."""
    low, high, less = MOST, LEAST, NO_MAGNITUDE
    zeros, total, squares = 0, 0.0, 0.0
    for i in range(size):
        value = values[i]
        magnitude = np.uint64(value if value >= 0 else -value) - np.uint64(1)
        number = np.float64(value)
        low = value if value < low else low
        high = value if value > high else high
        less = magnitude if magnitude < less else less
        zeros += np.int64(value == 0)
        total += number
        squares += number * number
    return low, high, less, zeros, total, squares


@helper
def widened(address, first, size, kind, state):
    """64-bit integers: those from ``first`` on, or copies of narrower ones."""
    if kind == L.INT64:
        return pointer_int64(address + 8 * first)
    block = pointer_int64(state[L.BLOCK_ADDRESS])
    if kind == L.INT32:
        words = pointer_int32(address + 4 * first)
        for i in range(size):
            block[i] = words[i]
    elif kind == L.INT16:
        shorts = pointer_int16(address + 2 * first)
        for i in range(size):
            block[i] = shorts[i]
    else:
        bytes_ = pointer_int8(address + first)
        for i in range(size):
            block[i] = bytes_[i]
    return block


@kernel
def summarise_integers(address, size, kind, state_address):
    """Write the row of ``size`` elements; 0, the count of NaN and inf, or FULL unwritten."""
    state = pointer_int64(state_address)
    if is_full(state):
        return L.FULL
    lowest, highest, smallest = MOST, LEAST, NO_MAGNITUDE
    zeros, total, squares = 0, 0.0, 0.0
    for first in range(0, size, L.BLOCK):
        count = L.BLOCK if size - first > L.BLOCK else size - first
        if kind == L.UINT8:
            block = take_bytes(pointer_uint8(address + first), count)
        else:
            block = take_words(widened(address, first, count, kind, state), count)
        lowest, highest, smallest = (
            least(lowest, block[0]),
            greatest(highest, block[1]),
            least(smallest, block[2]),
        )
        zeros, total, squares = zeros + block[3], total + block[4], squares + block[5]
    row = begin_row(state, size)
    write_counts(state, row, zeros, 0, 0, 0, 0, 0, 0, 0)
    values = pointer_float64(state[L.ROWS_ADDRESS] + state[L.NEXT_ROW] * (8 * L.WIDTH))
    values[L.MIN], values[L.MAX] = np.float64(lowest), np.float64(highest)
    values[L.ABSMIN] = np.float64(smallest) + 1.0 if smallest != NO_MAGNITUDE else math.nan
    values[L.MEAN], values[L.RMS] = total / size, math.sqrt(squares / size)
    return end_row(state, row)
