"""The numba kernel that summarises float32 memory, and narrower formats widened block by block."""

# mypy: ignore-errors
# The types of compiled code are numba's, inferred from the signature that the kernels are compiled
# for.

from __future__ import annotations

import math

import numpy as np

from nanlab.stats import _layout as L
from nanlab.stats._block32 import load_block
from nanlab.stats._edges import FLUSHED, NORMAL, OVERFLOWN, count_beyond
from nanlab.stats._emit import (
    SUBNORMAL_BINS,
    append_bin,
    append_subnormals,
    begin_row,
    end_row,
    is_full,
    write_counts,
)
from nanlab.stats._histogram512 import available
from nanlab.stats._jit import (
    float32_bits,
    float32_from,
    greatest,
    helper,
    inlined,
    kernel,
    least,
    pointer_float64,
    pointer_int64,
    pointer_uint32,
)
from nanlab.stats._passes32 import (
    HALF_SMALLEST_NORMAL,
    NO_SMALLEST,
    ONE,
    SMALLEST_NORMAL,
    ZERO,
    count_subnormals,
    look_at_each,
)
from nanlab.stats._scan import LANE

if available():
    from nanlab.stats._scan512 import LANES, VECTOR, scan
else:
    from nanlab.stats._scan import LANES, VECTOR, scan

# sets of edges, a bit for each
SMALL_EDGES, OVERFLOWN_EDGE = 1 << FLUSHED | 1 << NORMAL, 1 << OVERFLOWN
# Exponents, as they stand in the bits, at which float16 begins to hold values otherwise.
FLUSHED_UP_TO, NORMAL_FROM, ABOVE_FROM = 127 - 25, 127 - 14, 127 + 16

# Words of the tally: float64 bits, then magnitude bits less one, then counts.
LOWEST, HIGHEST, TOTAL, SQUARES, SMALLEST, NANS, POSINFS, NEGINFS = range(8)
BELOW, EDGES = 8, 9  # subnormals; then what lies just beyond each edge of float16


@helper
def take_lanes(bins, first, last):
    """Add the lanes of the bins from ``first`` to ``last`` up in the first lane, and clear the
    others."""
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


@inlined
def own_smallest_normal(kind, state):
    """Magnitude bits from which a value is normal in its own dtype."""
    if kind <= L.BFLOAT16 or kind == L.CHANGE:
        return SMALLEST_NORMAL
    if kind == L.FLOAT16:
        return HALF_SMALLEST_NORMAL
    return pointer_uint32(state[L.FLOAT8_ADDRESS])[L.FLOAT8_TABLES * 256 + kind - L.FLOAT8]


@inlined
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
def append_bins(state, bins, smallest, largest, own_normal):
    """Move the bins of all normal exponents to the arena; how many elements are below
    ``own_normal``, and what float16 makes of them."""
    below_own = flushed = below = above = 0
    if smallest == NO_SMALLEST:
        return below_own, flushed, below, above
    first = np.int64(greatest(np.uint32(smallest + ONE), SMALLEST_NORMAL) >> np.uint32(23))
    last = np.int64(largest >> np.uint32(23))
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


@helper
def take_block(block, count, scratch_address):
    """Count a block of float32 that lies in the first-level cache."""
    bits, bins = pointer_uint32(block), pointer_uint32(scratch_address)
    tally = pointer_int64(scratch_address + 8 * L.TALLY)
    values = pointer_float64(scratch_address + 8 * L.TALLY)
    first = count // VECTOR * VECTOR
    low, high, small, edges, total, squares = scan(block, first, scratch_address)
    if first < count:
        edges = SMALL_EDGES
    for i in range(first, count):
        bins[bits[i] >> np.uint32(23)] += ONE
    # an element is NaN or inf: the squares of the others do not overflow
    if not squares < math.inf:
        low, high, small, total, squares = (
            np.float32(math.inf),
            np.float32(-math.inf),
            NO_SMALLEST,
            0.0,
            0.0,
        )
        first = 0
    if first < count:
        rest = look_at_each(bits, first, count)
        low, high, small = least(low, rest[0]), greatest(high, rest[1]), least(small, rest[2])
        total, squares = total + rest[3], squares + rest[4]
        tally[NANS], tally[POSINFS], tally[NEGINFS] = (
            tally[NANS] + rest[5],
            tally[POSINFS] + rest[6],
            tally[NEGINFS] + rest[7],
        )
    values[LOWEST] = least(np.float64(low), values[LOWEST])
    values[HIGHEST] = greatest(np.float64(high), values[HIGHEST])
    values[TOTAL], values[SQUARES] = values[TOTAL] + total, values[SQUARES] + squares
    tally[SMALLEST] = least(np.int64(small), tally[SMALLEST])
    if small < SMALLEST_NORMAL - ONE:
        tally[BELOW] += count_subnormals(bits, count, pointer_int64(scratch_address))
    if small >= HALF_SMALLEST_NORMAL:
        edges = 0
    if greatest(np.float32(-low), high) >= 65520.0:
        edges |= OVERFLOWN_EDGE
    for edge in range(3):
        if edges >> edge & 1:
            tally[EDGES + edge] += count_beyond(block, count, edge)


@helper
def write_row(state, kind, size):
    """Write the row and the bins of the ``size`` elements that were counted; the count of NaN and
    inf."""
    scratch_address = state[L.SCRATCH_ADDRESS]
    bins, scratch = pointer_uint32(scratch_address), pointer_int64(scratch_address)
    tally = pointer_int64(scratch_address + 8 * L.TALLY)
    values = pointer_float64(scratch_address + 8 * L.TALLY)
    subnormal, smallest = tally[BELOW], np.uint32(tally[SMALLEST])
    nan, posinf, neginf = tally[NANS], tally[POSINFS], tally[NEGINFS]
    lowest, highest = np.float32(values[LOWEST]), np.float32(values[HIGHEST])
    own_normal = own_smallest_normal(kind, state)
    row = begin_row(state, size)
    if subnormal:
        append_subnormals(state, scratch, -149)
    largest = float32_bits(greatest(np.float32(-lowest), highest))
    below_own, flushed, below, above = append_bins(state, bins, smallest, largest, own_normal)
    zero = -subnormal
    for negative in range(2):
        take_lanes(bins, negative * 256, negative * 256)
        take_lanes(bins, negative * 256 + 255, negative * 256 + 255)
        zero += take_bin(bins, negative * 256)
    bins[255] = bins[511] = ZERO
    own_subnormal = below_own + (subnormal if own_normal >= SMALLEST_NORMAL else 0)
    flushed += subnormal + tally[EDGES + FLUSHED]
    below -= tally[EDGES + FLUSHED] + tally[EDGES + NORMAL]
    write_counts(
        state,
        row,
        zero,
        nan,
        posinf,
        neginf,
        own_subnormal,
        flushed,
        below,
        above + tally[EDGES + OVERFLOWN],
    )
    write_values(
        pointer_float64(state[L.ROWS_ADDRESS] + state[L.NEXT_ROW] * (8 * L.WIDTH)),
        size - nan - posinf - neginf,
        lowest,
        highest,
        smallest,
        values[TOTAL],
        values[SQUARES],
    )
    return end_row(state, row)


@helper
def clear_tally(scratch_address):
    """Begin to count."""
    tally = pointer_int64(scratch_address + 8 * L.TALLY)
    values = pointer_float64(scratch_address + 8 * L.TALLY)
    for word in range(L.TALLY_WORDS):
        tally[word] = 0
    values[LOWEST], values[HIGHEST], tally[SMALLEST] = math.inf, -math.inf, np.int64(NO_SMALLEST)


@helper
def join_parts(state):
    """Add up what was counted in the scratches of the parts, which are cleared, in their order."""
    scratch_address = state[L.SCRATCH_ADDRESS]
    clear_tally(scratch_address)
    scratch, words = pointer_int64(scratch_address), pointer_int64(scratch_address + 8 * L.TALLY)
    values = pointer_float64(scratch_address + 8 * L.TALLY)
    for part in range(state[L.PARTS]):
        address = pointer_int64(state[L.PART_STATES] + part * (8 * L.STATE_WIDTH))[
            L.SCRATCH_ADDRESS
        ]
        others, tally = pointer_int64(address), pointer_int64(address + 8 * L.TALLY)
        extent = pointer_float64(address + 8 * L.TALLY)
        for place in range(LANE // 2):  # two bins at a time
            scratch[place] += others[place]
            others[place] = 0
        if tally[BELOW]:
            for place in range(SUBNORMAL_BINS, SUBNORMAL_BINS + 128):
                scratch[place] += others[place]
                others[place] = 0
        values[LOWEST] = least(extent[LOWEST], values[LOWEST])
        values[HIGHEST] = greatest(extent[HIGHEST], values[HIGHEST])
        values[TOTAL], values[SQUARES] = (
            values[TOTAL] + extent[TOTAL],
            values[SQUARES] + extent[SQUARES],
        )
        words[SMALLEST] = least(tally[SMALLEST], words[SMALLEST])
        for word in range(NANS, L.TALLY_WORDS):
            words[word] += tally[word]


@kernel
def summarise32(address, size, kind, state_address):
    """Write the row and the bins of ``size`` elements; the count of NaN and inf, or FULL with
    nothing written.

    Where the state says so, it only counts the elements, which are one part of a tensor, or only
    writes the row of the tensor.
    """
    state = pointer_int64(state_address)
    parts, scratch_address = state[L.PARTS], state[L.SCRATCH_ADDRESS]
    if parts >= 0 and is_full(state):
        return L.FULL
    if parts > 0:
        join_parts(state)
    else:
        clear_tally(scratch_address)
        for start in range(0, size, L.BLOCK):
            count = L.BLOCK if size - start > L.BLOCK else size - start
            take_block(load_block(address, start, count, kind, state), count, scratch_address)
    if parts == L.ONE_PART:
        take_lanes(pointer_uint32(scratch_address), np.int64(0), np.int64(LANE - 1))
        return 0
    return write_row(state, kind, size)
