"""The numba kernel that summarises float32 memory, and narrower formats widened block by block."""

# mypy: ignore-errors
# The types of compiled code are numba's, inferred from the signature that the kernels are compiled for.

from __future__ import annotations

import math

import numpy as np

from nanlab.stats import _layout as L
from nanlab.stats._block32 import BFLOAT16, CHANGE, FLOAT8, FLOAT16, load_block
from nanlab.stats._emit import append_bin, append_subnormals, begin_row, count_subnormal, end_row, is_full, write_counts
from nanlab.stats._histogram512 import available
from nanlab.stats._jit import (
    fast_helper,
    float32_bits,
    float32_from,
    helper,
    kernel,
    pointer_float64,
    pointer_int64,
    pointer_uint32,
)
from nanlab.stats._scan import LANE

if available():
    from nanlab.stats._scan512 import LANES, VECTOR, scan
else:
    from nanlab.stats._scan import LANES, VECTOR, scan

# float32 bits without the sign, which sort like magnitudes
MAGNITUDE = np.uint32(0x7FFFFFFF)
INF = np.uint32(0x7F800000)
NEGINF = np.uint32(0xFF800000)
SMALLEST_NORMAL = np.uint32(0x00800000)
HALF_ZERO = np.uint32(0x33000000)  # 2^-25: float16 flushes to zero up to here
HALF_NORMAL = np.uint32(0x387FE000)  # 2^-14 - 2^-25: float16 rounds to a normal value from here
HALF_INF = np.uint32(0x477FF000)  # 65520: float16 overflows from here
HALF_SMALLEST_NORMAL = np.uint32(0x38800000)  # 2^-14
HALF_POWER = np.uint32(0x47800000)  # 2^16
BELOW_NORMAL = np.uint32(HALF_SMALLEST_NORMAL - HALF_NORMAL)
BELOW_POWER = np.uint32(HALF_POWER - HALF_INF)
# their exponents, as they stand in the bits
FLUSHED_UP_TO, NORMAL_FROM, ABOVE_FROM = 127 - 25, 127 - 14, 127 + 16
NO_LOWEST, NO_HIGHEST, NO_SMALLEST = np.int32(0x7FFFFFFF), np.int32(-0x80000000), np.uint32(0xFFFFFFFF)
ZERO, ONE = np.uint32(0), np.uint32(1)


@helper
def order_key(bits):
    """An int32 that sorts like the float32 with these bits; its own inverse."""
    signed = np.int32(bits)
    return np.int32(signed ^ np.int32(np.int32(signed >> np.int32(31)) & np.int32(0x7FFFFFFF)))


@helper
def finite_extent(bits, first, size):
    """Of the finite elements from ``first`` on: least and greatest order key, least magnitude less one (zero wraps round to the
    greatest); then the counts of NaN, inf and -inf. Integers throughout, which LLVM turns into vectors."""
    lowest, highest, smallest = NO_LOWEST, NO_HIGHEST, NO_SMALLEST
    nan, posinf, neginf = ZERO, ZERO, ZERO
    for i in range(first, size):
        magnitude = np.uint32(bits[i] & MAGNITUDE)
        key = order_key(bits[i])
        finite = magnitude < INF
        low = key if finite else NO_LOWEST  # selected first, compared then: so the loop has no branch
        high = key if finite else NO_HIGHEST
        less = np.uint32(magnitude - ONE) if finite else NO_SMALLEST
        lowest = low if low < lowest else lowest
        highest = high if high > highest else highest
        smallest = less if less < smallest else smallest
        nan = np.uint32(nan + np.uint32(magnitude > INF))
        posinf = np.uint32(posinf + np.uint32(bits[i] == INF))
        neginf = np.uint32(neginf + np.uint32(bits[i] == NEGINF))
    return lowest, highest, smallest, np.int64(nan), np.int64(posinf), np.int64(neginf)


@fast_helper
def finite_moments(bits, first, size):
    """Sum and sum of squares in float64 of the finite elements from ``first`` on."""
    total, squares = 0.0, 0.0
    for i in range(first, size):
        finite = np.uint32(bits[i] & MAGNITUDE) < INF
        value = np.float64(float32_from(bits[i] if finite else ZERO))
        total += value
        squares += value * value
    return total, squares


@helper
def look_at_each(bits, first, size):
    """As ``scan`` over the finite elements from ``first`` on, without the histogram; then the counts of NaN, inf and -inf."""
    lowest, highest, smallest, nan, posinf, neginf = finite_extent(bits, first, size)
    total, squares = finite_moments(bits, first, size)
    low, high = np.float32(math.inf), np.float32(-math.inf)
    if lowest != NO_LOWEST:
        low, high = float32_from(np.uint32(order_key(lowest))), float32_from(np.uint32(order_key(highest)))
    return low, high, smallest, total, squares, nan, posinf, neginf


@helper
def small_edges(bits, size):
    """How many elements are 2^-25, which float16 flushes, and how many it rounds up to its smallest normal."""
    flushed, normal = ZERO, ZERO
    for i in range(size):
        magnitude = np.uint32(bits[i] & MAGNITUDE)
        flushed = np.uint32(flushed + np.uint32(magnitude == HALF_ZERO))
        normal = np.uint32(normal + np.uint32(np.uint32(magnitude - HALF_NORMAL) < BELOW_NORMAL))
    return np.int64(flushed), np.int64(normal)


@helper
def large_edge(bits, size):
    """How many elements below 2^16 overflow in float16."""
    above = ZERO
    for i in range(size):
        magnitude = np.uint32(bits[i] & MAGNITUDE)
        above = np.uint32(above + np.uint32(np.uint32(magnitude - HALF_INF) < BELOW_POWER))
    return np.int64(above)


@helper
def count_subnormals(bits, size, scratch):
    """Bin float32 subnormals at their true exponents; how many there are."""
    found = 0
    for i in range(size):
        magnitude = np.uint32(bits[i] & MAGNITUDE)
        if ZERO < magnitude < SMALLEST_NORMAL:
            count_subnormal(magnitude, bits[i] >> np.uint32(31), scratch)
            found += 1
    return found


@helper
def take_lanes(bins, first, last):
    """Add the lanes of the bins from ``first`` to ``last`` up in the first lane, and clear the others."""
    for place in range(first, last + 1):
        count = bins[place]
        for lane in range(1, LANES):
            count = np.uint32(count + bins[lane * LANE + place])
            bins[lane * LANE + place] = ZERO
        bins[place] = count


@helper
def take_bin(bins, place):
    """The count of one bin, which is cleared."""
    count = np.int64(bins[place])
    bins[place] = ZERO
    return count


@helper
def own_smallest_normal(kind, state):
    """Magnitude bits from which a value is normal in its own dtype."""
    if kind <= BFLOAT16 or kind == CHANGE:
        return SMALLEST_NORMAL
    if kind == FLOAT16:
        return HALF_SMALLEST_NORMAL
    return pointer_uint32(state[L.FLOAT8_ADDRESS])[L.FLOAT8_TABLES * 256 + kind - FLOAT8]


@helper
def write_values(row, finite, lowest, highest, smallest, total, squares):
    """The five numbers over the finite elements; NaN where there is no such element."""
    for word in range(L.MIN, L.RMS + 1):
        row[word] = math.nan
    if finite > 0:
        row[L.MIN] = np.float64(lowest) + 0.0  # -0.0 becomes 0.0
        row[L.MAX] = np.float64(highest) + 0.0
        if smallest != NO_SMALLEST:
            row[L.ABSMIN] = np.float64(float32_from(np.uint32(smallest + ONE)))
        row[L.MEAN] = total / finite
        row[L.RMS] = math.sqrt(squares / finite)


@helper
def append_bins(state, bins, smallest, greatest, own_normal):
    """Move the bins of all normal exponents to the arena; how many elements are below ``own_normal``, and what float16 makes of them."""
    below_own = flushed = below = above = 0
    if smallest == NO_SMALLEST:
        return below_own, flushed, below, above
    first = np.int64(max(np.uint32(smallest + ONE), SMALLEST_NORMAL) >> np.uint32(23))
    last = np.int64(greatest >> np.uint32(23))
    own = np.int64(own_normal >> np.uint32(23))
    for negative in range(2):
        take_lanes(bins, negative * 256 + first, negative * 256 + last)
        for exponent in range(first, last + 1):
            count = take_bin(bins, negative * 256 + exponent)
            append_bin(state, exponent - 127, negative, count)
            below_own += count if exponent < own else 0
            flushed += count if exponent < FLUSHED_UP_TO else 0
            below += count if FLUSHED_UP_TO <= exponent < NORMAL_FROM else 0
            above += count if exponent >= ABOVE_FROM else 0
    return below_own, flushed, below, above


@kernel
def summarise32(address, size, kind, state_address):
    """Write the row and the bins of ``size`` elements; the count of NaN and inf, or FULL with nothing written."""
    state = pointer_int64(state_address)
    if is_full(state):
        return L.FULL
    bins, scratch = pointer_uint32(state[L.SCRATCH_ADDRESS]), pointer_int64(state[L.SCRATCH_ADDRESS])
    lowest, highest, smallest = np.float32(math.inf), np.float32(-math.inf), NO_SMALLEST
    nan = posinf = neginf = subnormal = edge_flushed = edge_normal = edge_above = 0
    total = squares = 0.0
    for start in range(0, size, L.BLOCK):
        count = L.BLOCK if size - start > L.BLOCK else size - start
        block = load_block(address, start, count, kind, state)
        bits = pointer_uint32(block)
        first = count // VECTOR * VECTOR
        low, high, small, beyond, block_total, block_squares = scan(block, first, state[L.SCRATCH_ADDRESS])
        for i in range(first, count):
            bins[bits[i] >> np.uint32(23)] += ONE
        if not block_squares < math.inf:  # an element is NaN or inf: the squares of the others do not overflow
            low, high, small, block_total, block_squares = (
                np.float32(math.inf),
                np.float32(-math.inf),
                NO_SMALLEST,
                0.0,
                0.0,
            )
            first = 0
        if first < count:
            rest = look_at_each(bits, first, count)
            low, high = min(low, rest[0]), max(high, rest[1])
            small = min(small, rest[2])
            block_total, block_squares = block_total + rest[3], block_squares + rest[4]
            nan, posinf, neginf = nan + rest[5], posinf + rest[6], neginf + rest[7]
        total, squares = total + block_total, squares + block_squares
        lowest, highest, smallest = min(low, lowest), max(high, highest), min(small, smallest)
        if small < HALF_SMALLEST_NORMAL and (beyond < BELOW_NORMAL or first < count):
            edges = small_edges(bits, count)
            edge_flushed, edge_normal = edge_flushed + edges[0], edge_normal + edges[1]
        if small < SMALLEST_NORMAL - ONE:
            subnormal += count_subnormals(bits, count, scratch)
        if max(-low, high) >= 65520.0:
            edge_above += large_edge(bits, count)
    own_normal = own_smallest_normal(kind, state)
    row = begin_row(state, size)
    if subnormal:
        append_subnormals(state, scratch, -149)
    greatest = float32_bits(np.float32(max(-lowest, highest)))
    below_own, flushed, below, above = append_bins(state, bins, smallest, greatest, own_normal)
    for edge in (0, 255, 256, 511):
        take_lanes(bins, edge, edge)
    zero = take_bin(bins, 0) + take_bin(bins, 256) - subnormal
    bins[255] = bins[511] = ZERO
    own_subnormal = below_own + (subnormal if own_normal >= SMALLEST_NORMAL else 0)
    flushed += subnormal + edge_flushed
    below -= edge_flushed + edge_normal
    write_counts(state, row, zero, nan, posinf, neginf, own_subnormal, flushed, below, above + edge_above)
    write_values(
        pointer_float64(state[L.ROWS_ADDRESS] + state[L.NEXT_ROW] * (8 * L.WIDTH)),
        size - nan - posinf - neginf,
        lowest,
        highest,
        smallest,
        total,
        squares,
    )
    return end_row(state, row)
