"""The numba kernel that summarises float32 memory, and narrower formats widened block by block."""

# mypy: ignore-errors
# The types of compiled code are numba's, inferred from the signature that the kernels are compiled for.

from __future__ import annotations

import math

import numpy as np

from nanlab.stats import _layout as L
from nanlab.stats._emit import append_bin, append_subnormals, begin_row, count_subnormal, end_row, is_full, write_counts
from nanlab.stats._jit import (
    fast_helper,
    float32_bits,
    float32_from,
    helper,
    kernel,
    pointer_float32,
    pointer_float64,
    pointer_int64,
    pointer_uint8,
    pointer_uint16,
    pointer_uint32,
    pointer_uint64,
    prefetch,
)

FLOAT32, BFLOAT16, FLOAT16, FLOAT8 = 0, 1, 2, 3  # kinds; FLOAT8 + i reads the i-th table of 256 values

# float32 bits without the sign, which sort like magnitudes
MAGNITUDE = np.uint32(0x7FFFFFFF)
INF = np.uint32(0x7F800000)
SMALLEST_NORMAL = np.uint32(0x00800000)
HALF_ZERO = np.uint32(0x33000000)  # 2^-25: float16 flushes to zero up to here
HALF_NORMAL = np.uint32(0x387FE000)  # 2^-14 - 2^-25: float16 rounds to a normal value from here
HALF_INF = np.uint32(0x477FF000)  # 65520: float16 overflows from here
HALF_SMALLEST_NORMAL = np.uint32(0x38800000)  # 2^-14
# order keys of the same, and the neutral elements of the reductions
KEY_INF, KEY_NEGINF = np.int32(0x7F800000), np.int32(-0x7F800001)
NO_LOWEST, NO_HIGHEST, NO_SMALLEST = np.int32(0x7FFFFFFF), np.int32(-0x80000000), np.uint32(0xFFFFFFFF)
LANE = 512  # bins of one uint32 histogram: sign and exponent
FEW = 256  # elements up to which one histogram is faster than eight
ONE = np.uint32(1)


@helper
def order_key(bits):
    """An int32 that sorts like the float32 with these bits; its own inverse."""
    signed = np.int32(bits)
    return np.int32(signed ^ np.int32(np.int32(signed >> np.int32(31)) & np.int32(0x7FFFFFFF)))


@helper
def widen_half(half):
    """float16 bits to float32 bits; a subnormal is its integer mantissa times 2^-24."""
    magnitude = np.uint32(half & np.uint16(0x7FFF))
    sign = np.uint32(np.uint32(half & np.uint16(0x8000)) << np.uint32(16))
    shifted = np.uint32(magnitude << np.uint32(13))
    subnormal = float32_bits(np.float32(np.float32(np.int32(magnitude)) * np.float32(2.0**-24)))
    rebias = np.uint32(0x70000000) if magnitude >= np.uint32(0x7C00) else np.uint32(0x38000000)
    return np.uint32(sign | (subnormal if magnitude < np.uint32(0x400) else np.uint32(shifted + rebias)))


@helper
def load_block(address, first, size, kind, state):
    """Address of the float32 bits of ``size`` elements from ``first`` on, widened where they are narrower."""
    if kind == FLOAT32:
        return address + 4 * first
    block = pointer_uint32(state[L.BLOCK_ADDRESS])
    if kind == BFLOAT16:
        narrow = pointer_uint16(address + 2 * first)
        for i in range(size):
            block[i] = np.uint32(np.uint32(narrow[i]) << np.uint32(16))
    elif kind == FLOAT16:
        narrow = pointer_uint16(address + 2 * first)
        for i in range(size):
            block[i] = widen_half(narrow[i])
    else:
        table = pointer_uint32(state[L.FLOAT8_ADDRESS] + (kind - FLOAT8) * 1024)
        bytes_ = pointer_uint8(address + first)
        for i in range(size):
            block[i] = table[bytes_[i]]
    return state[L.BLOCK_ADDRESS]


@helper
def count_exponents(block, size, bins):
    """Histogram of sign and exponent; eight copies take turns, so that no addition waits for the one before."""
    words = pointer_uint64(block)
    shift, upper, mask = np.uint64(23), np.uint64(55), np.uint64(511)
    whole = size >> 3 if size >= FEW else 0
    for i in range(0, 4 * whole, 4):
        prefetch(block + 8 * i + 4 * L.BLOCK)
        first, second, third, fourth = words[i], words[i + 1], words[i + 2], words[i + 3]
        bins[np.int64(first >> upper)] += ONE
        bins[LANE + np.int64((first >> shift) & mask)] += ONE
        bins[2 * LANE + np.int64(second >> upper)] += ONE
        bins[3 * LANE + np.int64((second >> shift) & mask)] += ONE
        bins[4 * LANE + np.int64(third >> upper)] += ONE
        bins[5 * LANE + np.int64((third >> shift) & mask)] += ONE
        bins[6 * LANE + np.int64(fourth >> upper)] += ONE
        bins[7 * LANE + np.int64((fourth >> shift) & mask)] += ONE
    bits = pointer_uint32(block)
    for i in range(8 * whole, size):
        bins[bits[i] >> np.uint32(23)] += ONE


@helper
def extent(bits, size):
    """Least and greatest order key, least magnitude minus 1 (zero wraps round to the greatest), count of zeros."""
    lowest, highest, smallest, zeros = NO_LOWEST, NO_HIGHEST, NO_SMALLEST, np.uint32(0)
    for i in range(size):
        magnitude = np.uint32(bits[i] & MAGNITUDE)
        key = order_key(bits[i])
        lowest = key if key < lowest else lowest
        highest = key if key > highest else highest
        less = np.uint32(magnitude - ONE)
        smallest = less if less < smallest else smallest
        zeros = np.uint32(zeros + np.uint32(magnitude == np.uint32(0)))
    return lowest, highest, smallest, np.int64(zeros)


@helper
def finite_extent(bits, size):
    """As ``extent``, over the finite elements; then the counts of NaN, inf and -inf."""
    lowest, highest, smallest = NO_LOWEST, NO_HIGHEST, NO_SMALLEST
    nan, posinf, neginf = np.uint32(0), np.uint32(0), np.uint32(0)
    for i in range(size):
        magnitude = np.uint32(bits[i] & MAGNITUDE)
        key = order_key(bits[i])
        finite = magnitude < INF
        low = key if finite else NO_LOWEST  # selected first, compared then: so the loop has no branch
        high = key if finite else NO_HIGHEST
        small = np.uint32(magnitude - ONE) if finite else NO_SMALLEST
        lowest = low if low < lowest else lowest
        highest = high if high > highest else highest
        smallest = small if small < smallest else smallest
        nan = np.uint32(nan + np.uint32(magnitude > INF))
        posinf = np.uint32(posinf + np.uint32(key == KEY_INF))
        neginf = np.uint32(neginf + np.uint32(key == KEY_NEGINF))
    return lowest, highest, smallest, np.int64(nan), np.int64(posinf), np.int64(neginf)


@fast_helper
def moments(values, size):
    """Sum and sum of squares in float64."""
    total, squares = 0.0, 0.0
    for i in range(size):
        value = np.float64(values[i])
        total += value
        squares += value * value
    return total, squares


@fast_helper
def finite_moments(bits, size):
    """Sum and sum of squares in float64 over the finite elements."""
    total, squares = 0.0, 0.0
    for i in range(size):
        finite = np.uint32(bits[i] & MAGNITUDE) < INF
        value = np.float64(float32_from(bits[i] if finite else np.uint32(0)))
        total += value
        squares += value * value
    return total, squares


@helper
def half_counts(bits, size, own_normal):
    """How many magnitudes float16 flushes to zero, holds below its normal range, overflows; how many are subnormal."""
    flushed, below, above, subnormal = np.uint32(0), np.uint32(0), np.uint32(0), np.uint32(0)
    for i in range(size):
        magnitude = np.uint32(bits[i] & MAGNITUDE)
        flushed = np.uint32(flushed + np.uint32(magnitude <= HALF_ZERO))
        below = np.uint32(below + np.uint32(magnitude < HALF_NORMAL))
        above = np.uint32(above + np.uint32(magnitude >= HALF_INF))
        subnormal = np.uint32(subnormal + np.uint32(magnitude < own_normal))
    return np.int64(flushed), np.int64(below), np.int64(above), np.int64(subnormal)


@helper
def count_subnormals(bits, size, scratch):
    """Bin float32 subnormals at their true exponents."""
    for i in range(size):
        magnitude = np.uint32(bits[i] & MAGNITUDE)
        if np.uint32(0) < magnitude < SMALLEST_NORMAL:
            count_subnormal(magnitude, bits[i] >> np.uint32(31), scratch)


@helper
def append_bins(state, bins, smallest, greatest, lanes):
    """Move every bin of a tensor to the arena, and clear those of 0, NaN and inf."""
    first, last = np.int64(1), np.int64(0)
    if smallest != NO_SMALLEST:
        last = np.int64(greatest >> np.uint32(23))
        if smallest < SMALLEST_NORMAL - ONE:
            append_subnormals(state, pointer_int64(state[L.SCRATCH_ADDRESS]), -149)
        else:
            first = np.int64(np.uint32(smallest + ONE) >> np.uint32(23))
    for negative in range(2):
        for lane in range(lanes):
            bins[lane * LANE + negative * 256] = np.uint32(0)
            bins[lane * LANE + negative * 256 + 255] = np.uint32(0)
        for exponent in range(first, last + 1):
            count = np.int64(0)
            for lane in range(lanes):
                place = lane * LANE + negative * 256 + exponent
                count += np.int64(bins[place])
                bins[place] = np.uint32(0)
            append_bin(state, exponent - 127, negative, count)


@helper
def magnitude_of(lowest, highest):
    """Bits of the greatest magnitude between two order keys."""
    least = np.uint32(order_key(np.uint32(lowest)) & np.int32(0x7FFFFFFF))
    most = np.uint32(order_key(np.uint32(highest)) & np.int32(0x7FFFFFFF))
    return least if least > most else most


@helper
def own_smallest_normal(kind, state):
    """Magnitude bits from which a value is normal in its own dtype."""
    if kind <= BFLOAT16:
        return SMALLEST_NORMAL
    if kind == FLOAT16:
        return HALF_SMALLEST_NORMAL
    return pointer_uint32(state[L.FLOAT8_ADDRESS])[L.FLOAT8_TABLES * 256 + kind - FLOAT8]


@helper
def write_values(row, state, finite, lowest, highest, smallest, total, squares):
    """The five numbers over the finite elements; NaN where there is no such element."""
    values = pointer_float64(state[L.ROWS_ADDRESS] + state[L.NEXT_ROW] * (8 * L.WIDTH))
    for word in range(L.MIN, L.RMS + 1):
        values[word] = math.nan
    if finite > 0:
        edge = pointer_float32(state[L.BLOCK_ADDRESS])
        edge_bits = pointer_uint32(state[L.BLOCK_ADDRESS])
        edge_bits[0] = np.uint32(order_key(np.uint32(lowest)))
        edge_bits[1] = np.uint32(order_key(np.uint32(highest)))
        edge_bits[2] = np.uint32(smallest + ONE)
        values[L.MIN] = np.float64(edge[0]) + 0.0  # -0.0 becomes 0.0
        values[L.MAX] = np.float64(edge[1]) + 0.0
        if smallest != NO_SMALLEST:
            values[L.ABSMIN] = np.float64(edge[2])
        values[L.MEAN] = total / finite
        values[L.RMS] = math.sqrt(squares / finite)


@kernel
def summarise32(address, size, kind, state_address):
    """Write the row and the bins of ``size`` elements; the count of NaN and inf, or FULL with nothing written."""
    state = pointer_int64(state_address)
    if is_full(state):
        return L.FULL
    bins = pointer_uint32(state[L.SCRATCH_ADDRESS])
    own_normal = own_smallest_normal(kind, state)
    watched = own_normal if own_normal > HALF_SMALLEST_NORMAL else HALF_SMALLEST_NORMAL
    lowest, highest, smallest = NO_LOWEST, NO_HIGHEST, NO_SMALLEST
    zero = nan = posinf = neginf = flushed = below = above = subnormal = 0
    total = squares = 0.0
    for first in range(0, size, L.BLOCK):
        count = L.BLOCK if size - first > L.BLOCK else size - first
        block = load_block(address, first, count, kind, state)
        bits, values = pointer_uint32(block), pointer_float32(block)
        count_exponents(block, count, bins)
        low, high, small, zeros = extent(bits, count)
        nonfinite = 0
        if low <= KEY_NEGINF or high >= KEY_INF:
            low, high, small, nans, posinfs, neginfs = finite_extent(bits, count)
            nan, posinf, neginf = nan + nans, posinf + posinfs, neginf + neginfs
            nonfinite = nans + posinfs + neginfs
            block_total, block_squares = finite_moments(bits, count)
        else:
            block_total, block_squares = moments(values, count)
        total, squares = total + block_total, squares + block_squares
        lowest = low if low < lowest else lowest
        highest = high if high > highest else highest
        smallest = small if small < smallest else smallest
        zero += zeros
        if zeros + nonfinite < count and (small < watched or magnitude_of(low, high) >= HALF_INF):
            counts = half_counts(bits, count, own_normal)
            flushed += counts[0] - zeros
            below += counts[1] - counts[0]
            above += counts[2] - nonfinite
            subnormal += counts[3] - zeros
            if small < SMALLEST_NORMAL - ONE:
                count_subnormals(bits, count, pointer_int64(state[L.SCRATCH_ADDRESS]))
    row = begin_row(state, size)
    write_counts(state, row, zero, nan, posinf, neginf, subnormal, flushed, below, above)
    finite = size - nan - posinf - neginf
    write_values(row, state, finite, lowest, highest, smallest, total, squares)
    append_bins(state, bins, smallest, magnitude_of(lowest, highest), 1 if size < FEW else 8)
    return end_row(state, row)
