"""The numba kernel for float32 memory, and for narrower formats widened in blocks."""

# mypy: ignore-errors
# The types of compiled code are numba's, inferred from the signature that the kernels are compiled
# for.

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
from llvmlite import ir
from numba import cfunc, types
from numba.core import cgutils
from numba.core.base import BaseContext

from nanlab.stats import layout as L
from nanlab.stats.jit import (
    SIGNATURE,
    SUBNORMAL_BINS,
    append_bin,
    append_subnormals,
    begin_row,
    count_subnormal,
    emit_prefetch,
    emitted,
    end_row,
    fast_helper,
    float32_bits,
    float32_from,
    greatest,
    helper,
    inlined,
    is_full,
    kernel,
    least,
    pointer_float32,
    pointer_float64,
    pointer_int64,
    pointer_uint8,
    pointer_uint16,
    pointer_uint32,
    write_counts,
)

# The innermost loop, written in LLVM's own terms: a histogram and five reductions in one go
# over float32 memory.
#
# Counting exponents keeps the scalar units busy and the reductions the vector units, so that
# together they take little longer than the counting alone; numba's compiler joins the two only
# on demand. Measured on one core of an x86 server: 0.32 ns an element, 0.24 where two elements
# are counted at a time; the reductions alone take 0.14.

VECTOR = 16  # elements at a time
LANES = 16  # histograms that take turns, so that no addition waits for the one before
# uint32 of one histogram: bins of sign and exponent, and one line of the cache, without which the
# same bin of all histograms lies in two sets of a first-level cache: half as much time again
LANE = 512 + 16
# magnitudes at which float16 begins to round otherwise: 2^-25, 2^-14 - 2^-25
HALF_EDGES = (0x33000000, 0x387FE000)
# so many magnitudes from the second edge on become 2^-14; of the first, only one becomes zero
BEYOND = 0x2000
BOTH_EDGES = 0b11  # a bit for each edge beyond which there may be elements
AHEAD = 1 << 11  # bytes; far enough for memory to answer

WORD, LONG = ir.IntType(32), ir.IntType(64)
INTEGERS = ir.VectorType(WORD, VECTOR)
SINGLES = ir.VectorType(ir.FloatType(), VECTOR)
DOUBLES = ir.VectorType(ir.DoubleType(), VECTOR)


def filled(vector: ir.VectorType, value: float) -> ir.Constant:
    """A vector of equal elements."""
    return ir.Constant(vector, [value] * VECTOR)


def less(builder: ir.IRBuilder, a: ir.Value, b: ir.Value) -> ir.Value:
    """The smaller of two floats, ``b`` if one is NaN."""
    return builder.select(builder.fcmp_ordered("<", a, b), a, b)


def more(builder: ir.IRBuilder, a: ir.Value, b: ir.Value) -> ir.Value:
    """The greater of two floats, ``b`` if one is NaN."""
    return builder.select(builder.fcmp_ordered(">", a, b), a, b)


def less_unsigned(builder: ir.IRBuilder, a: ir.Value, b: ir.Value) -> ir.Value:
    """The smaller of two unsigned integers."""
    return builder.select(builder.icmp_unsigned("<", a, b), a, b)


def add(builder: ir.IRBuilder, a: ir.Value, b: ir.Value) -> ir.Value:
    """The sum of two floats."""
    return builder.fadd(a, b, flags=["contract"])


# What is reduced: how, from which start, and what each vector of elements contributes. Extremes are
# kept of half a vector: with all of them whole, registers of 32 bytes do not suffice.
HALF_VECTOR = VECTOR // 2


def halved(kind: ir.Type, value: Any) -> ir.Constant:
    """Half a vector of equal elements."""
    return ir.Constant(ir.VectorType(kind, HALF_VECTOR), [value] * HALF_VECTOR)


REDUCTIONS = (
    (less, halved(ir.FloatType(), float("inf"))),
    (more, halved(ir.FloatType(), float("-inf"))),
    (less_unsigned, halved(WORD, 0xFFFFFFFF)),
    (less_unsigned, halved(WORD, 0xFFFFFFFF)),
    (add, filled(DOUBLES, 0.0)),
    (add, filled(DOUBLES, 0.0)),
)


def contributions(builder: ir.IRBuilder, values: ir.Value) -> list[ir.Value]:
    """Values twice, magnitude bits - 1, excess over an edge, float64 values, squares."""
    magnitudes = builder.and_(builder.bitcast(values, INTEGERS), filled(INTEGERS, 0x7FFFFFFF))
    wide = builder.fpext(values, DOUBLES)
    squares = builder.fmul(wide, wide, flags=["contract"])
    above = [builder.sub(magnitudes, filled(INTEGERS, edge)) for edge in HALF_EDGES]
    return [
        values,
        values,
        builder.sub(magnitudes, filled(INTEGERS, 1)),
        less_unsigned(builder, *above),
        wide,
        squares,
    ]


def emit_add(builder: ir.IRBuilder, bins: ir.Value, bin_: ir.Value, count: ir.Value) -> None:
    """Add to one bin."""
    place = builder.gep(bins, [bin_])
    builder.store(builder.add(builder.load(place), count), place)


def count_exponents(builder: ir.IRBuilder, address: ir.Value, bins: ir.Value) -> None:
    """Count one vector's signs and exponents, two elements per 64-bit word."""
    words = builder.inttoptr(address, LONG.as_pointer())
    for pair in range(VECTOR // 2):
        word = builder.load(builder.gep(words, [LONG(pair)]), align=4)
        lower = builder.and_(builder.lshr(word, LONG(23)), LONG(511))
        for element, exponent in enumerate((lower, builder.lshr(word, LONG(55)))):
            lane = (2 * pair + element) % LANES
            emit_add(builder, bins, builder.add(exponent, LONG(lane * LANE)), WORD(1))


def load_values(builder: ir.IRBuilder, address: ir.Value, vector: int = 0) -> ir.Value:
    """One of the vectors from an address on."""
    place = builder.inttoptr(builder.add(address, LONG(4 * VECTOR * vector)), SINGLES.as_pointer())
    return builder.load(place, align=4)


def reduced(builder: ir.IRBuilder, vector: ir.Value, join: Callable[..., ir.Value]) -> ir.Value:
    """One number from a vector."""
    elements = [builder.extract_element(vector, WORD(i)) for i in range(vector.type.count)]
    while len(elements) > 1:
        elements = [join(builder, a, b) for a, b in zip(elements[::2], elements[1::2], strict=True)]
    return elements[0]


SCANNED = types.Tuple(
    (types.float32, types.float32, types.uint32, types.uint32, types.float64, types.float64)
)


def emit_reduction(builder: ir.IRBuilder, result: Any, join: Any, given: list[ir.Value]) -> None:
    """Join vectors with a result: sums in their order."""
    found = builder.load(result)
    if found.type.count == VECTOR:
        for value in given:
            found = join(builder, value, found)
    else:
        value = given[0]
        for other in given[1:]:
            value = join(builder, value, other)
        for first in (0, HALF_VECTOR):
            lanes = ir.Constant(
                ir.VectorType(WORD, HALF_VECTOR), [*range(first, first + HALF_VECTOR)]
            )
            found = join(builder, builder.shuffle_vector(value, value, lanes), found)
    builder.store(found, result)


def emit_scan(
    context: BaseContext,
    builder: ir.IRBuilder,
    begin: ir.Value,
    size: ir.Value,
    vectors: int,
    count: Callable[[ir.Value, ir.Value], None],
) -> ir.Value:
    """The reductions of ``size`` float32 at an address, so many vectors at a time.

    count: emits what counts them, of the address and the number of the turn.
    """
    results = [cgutils.alloca_once_value(builder, start) for _, start in REDUCTIONS]
    with cgutils.for_range(builder, builder.udiv(size, LONG(vectors * VECTOR))) as loop:
        address = builder.add(begin, builder.mul(loop.index, LONG(4 * vectors * VECTOR)))
        for vector in range(vectors):
            emit_prefetch(builder, builder.add(address, LONG(AHEAD + 4 * VECTOR * vector)))
        loaded = [load_values(builder, address, vector) for vector in range(vectors)]
        count(address, loop.index)
        contributed = zip(*[contributions(builder, values) for values in loaded], strict=True)
        for result, (join, _), given in zip(results, REDUCTIONS, contributed, strict=True):
            emit_reduction(builder, result, join, list(given))
    numbers = [
        reduced(builder, builder.load(r), join)
        for r, (join, _) in zip(results, REDUCTIONS, strict=True)
    ]
    beyond = builder.icmp_unsigned("<", numbers[3], WORD(BEYOND))
    numbers[3] = builder.select(beyond, WORD(BOTH_EDGES), WORD(0))
    return context.make_tuple(builder, SCANNED, numbers)


@emitted(SCANNED(types.int64, types.int64, types.int64))
def scan(context: BaseContext, builder: ir.IRBuilder, begin: Any, size: Any, bins: Any) -> ir.Value:
    """Count ``size`` float32 (a multiple of VECTOR) at ``begin`` in the histograms at ``bins``;
    their least, greatest, least magnitude bits less one (a zero counts as the greatest), beyond
    which edges of float16 some may be, float64 sum and sum of squares.

    Least and greatest pass over NaN; a NaN or an infinity makes the sum of squares one.
    """
    histograms = builder.inttoptr(bins, WORD.as_pointer())
    return emit_scan(
        context,
        builder,
        begin,
        size,
        1,
        lambda address, turn: count_exponents(builder, address, histograms),
    )


# Two elements at a time: one addition to a histogram of pairs counts both.
#
# Of a window of 28 exponents in a row the codes differ: with x the sign and the exponent as they
# stand in the bits, x + x // 8 modulo 64. A factor 2^n, which leaves zeros zeros, brings the window
# to the exponents whose codes are 1 to 31, and 33 to 63 of negative ones; zeros have 0 and 32.

CODES = 64
WINDOW_EXPONENTS = 28
WINDOW_TOP = 85  # the largest exponent of the window, once multiplied
PAIR_LANES, PAIR_LANE = 4, CODES * CODES + 16  # histograms that take turns, as above
CODES_AT = PAIR_LANES * PAIR_LANE  # where the codes wait until they are counted
# turns between making codes and counting them, which would wait for the vector to be written
DELAY, SLOTS = 3, 4
WORTH_PAIRS = 7 * L.BLOCK  # elements to come for which a histogram of pairs is worth its emptying


def emit_codes(builder: ir.IRBuilder, address: Any, factor: Any, slots: Any, turn: Any) -> None:
    """Write the codes of the pairs of two vectors."""
    codes = []
    for vector in range(2):
        values = builder.fmul(load_values(builder, address, vector), factor)
        bits = builder.bitcast(values, INTEGERS)
        code = builder.add(*[builder.lshr(bits, filled(INTEGERS, by)) for by in (23, 26)])
        codes.append(builder.and_(code, filled(INTEGERS, CODES - 1)))
    pairs = builder.or_(codes[0], builder.mul(codes[1], filled(INTEGERS, CODES)))
    slot = builder.and_(turn, LONG(SLOTS - 1))
    builder.store(pairs, builder.gep(slots, [slot]), align=4)


@emitted(SCANNED(types.int64, types.int64, types.int64, types.float32, types.uint32))
def scan_pairs(
    context: BaseContext,
    builder: ir.IRBuilder,
    begin: Any,
    size: Any,
    bins: Any,
    factor: Any,
    step: Any,
) -> ir.Value:
    """As ``scan`` of a multiple of 2 * VECTOR, with a histogram of pairs, to which ``step`` is
    added for each; ``factor`` brings the window of their exponents to its place."""
    histograms = builder.inttoptr(bins, WORD.as_pointer())
    codes = builder.gep(histograms, [LONG(CODES_AT)])
    slots = builder.bitcast(codes, INTEGERS.as_pointer())
    none = ir.Constant(SINGLES, ir.Undefined)
    first = builder.insert_element(none, factor, WORD(0))
    factors = builder.shuffle_vector(first, none, filled(INTEGERS, 0))
    turns = builder.udiv(size, LONG(2 * VECTOR))

    def make(turn: ir.Value) -> None:
        there = builder.select(builder.icmp_unsigned("<", turn, turns), turn, LONG(0))
        address = builder.add(begin, builder.mul(there, LONG(8 * VECTOR)))
        emit_codes(builder, address, factors, slots, turn)

    def count(address: ir.Value, turn: ir.Value) -> None:
        make(builder.add(turn, LONG(DELAY)))
        slot = builder.mul(builder.and_(turn, LONG(SLOTS - 1)), LONG(VECTOR))
        for pair in range(VECTOR):
            code = builder.load(builder.gep(codes, [builder.add(slot, LONG(pair))]), align=4)
            lane = pair % PAIR_LANES * PAIR_LANE
            emit_add(builder, histograms, builder.add(builder.zext(code, LONG), LONG(lane)), step)

    with cgutils.for_range(builder, LONG(DELAY)) as loop:
        make(loop.index)
    return emit_scan(context, builder, begin, size, 2, count)


# Counting the elements that lie just beyond an edge of float16, where their exponents do not
# tell.

# The edges. Magnitudes just beyond them, which round otherwise than the others of their exponent,
# are equal in these bits to these.
FLUSHED, NORMAL, OVERFLOWN = range(3)
# 2^-25: flushed to zero up to here
FLUSHED_BITS, FLUSHED_EQUAL = np.uint32(0x7FFFFFFF), np.uint32(0x33000000)
# 2^-14 - 2^-25: becomes 2^-14 from here on
NORMAL_BITS, NORMAL_EQUAL = np.uint32(0x7FFFE000), np.uint32(0x387FE000)
# 65520: becomes infinite from here on
OVERFLOWN_BITS, OVERFLOWN_EQUAL = np.uint32(0x7FFFF000), np.uint32(0x477FF000)


@helper
def count_beyond(address, size, edge):
    """How many of ``size`` float32 lie just beyond an edge."""
    mask, wanted = FLUSHED_BITS, FLUSHED_EQUAL
    if edge == NORMAL:
        mask, wanted = NORMAL_BITS, NORMAL_EQUAL
    elif edge == OVERFLOWN:
        mask, wanted = OVERFLOWN_BITS, OVERFLOWN_EQUAL
    bits, found = pointer_uint32(address), np.uint32(0)
    for i in range(size):
        found = np.uint32(found + np.uint32(np.uint32(bits[i] & mask) == wanted))
    return np.int64(found)


# Memory as blocks of float32: narrower formats are widened, and what became of values is
# subtracted.


@helper
def widen_half(half):
    """float16 bits to float32 bits; a subnormal is its integer mantissa times 2^-24."""
    magnitude = np.uint32(half & np.uint16(0x7FFF))
    sign = np.uint32(np.uint32(half & np.uint16(0x8000)) << np.uint32(16))
    shifted = np.uint32(magnitude << np.uint32(13))
    subnormal = float32_bits(np.float32(np.float32(np.int32(magnitude)) * np.float32(2.0**-24)))
    rebias = np.uint32(0x70000000) if magnitude >= np.uint32(0x7C00) else np.uint32(0x38000000)
    return np.uint32(
        sign | (subnormal if magnitude < np.uint32(0x400) else np.uint32(shifted + rebias))
    )


@inlined
def take_change(new_address, old_address, change_address, size):
    """Write new less old values."""
    new, old, change = (
        pointer_float32(new_address),
        pointer_float32(old_address),
        pointer_float32(change_address),
    )
    for i in range(size):
        change[i] = new[i] - old[i]


@helper
def load_block(address, first, size, kind, state):
    """Address of the float32 bits of ``size`` elements from ``first`` on, widened."""
    if kind == L.FLOAT32:
        return address + 4 * first
    block = pointer_uint32(state[L.BLOCK_ADDRESS])
    if kind == L.CHANGE:
        take_change(
            address + 4 * first, state[L.OLD_ADDRESS] + 4 * first, state[L.BLOCK_ADDRESS], size
        )
    elif kind == L.BFLOAT16:
        narrow = pointer_uint16(address + 2 * first)
        for i in range(size):
            block[i] = np.uint32(np.uint32(narrow[i]) << np.uint32(16))
    elif kind == L.FLOAT16:
        narrow = pointer_uint16(address + 2 * first)
        for i in range(size):
            block[i] = widen_half(narrow[i])
    else:
        table = pointer_uint32(state[L.FLOAT8_ADDRESS] + (kind - L.FLOAT8) * 1024)
        bytes_ = pointer_uint8(address + first)
        for i in range(size):
            block[i] = table[bytes_[i]]
    return state[L.BLOCK_ADDRESS]


# Passes over a block of float32 that only some blocks need: what is not finite, or subnormal.

# float32 bits without the sign, which sort like magnitudes
MAGNITUDE = np.uint32(0x7FFFFFFF)
INF = np.uint32(0x7F800000)
NEGINF = np.uint32(0xFF800000)
SMALLEST_NORMAL = np.uint32(0x00800000)
HALF_SMALLEST_NORMAL = np.uint32(0x38800000)  # 2^-14
NO_LOWEST, NO_HIGHEST, NO_SMALLEST = (
    np.int32(0x7FFFFFFF),
    np.int32(-0x80000000),
    np.uint32(0xFFFFFFFF),
)
ZERO, ONE, LESS_ONE = np.uint32(0), np.uint32(1), np.uint32(0xFFFFFFFF)


@helper
def order_key(bits):
    """An int32 that sorts like the float32 with these bits; its own inverse."""
    return np.int32(bits ^ np.int32(np.int32(bits >> np.int32(31)) & np.int32(0x7FFFFFFF)))


@helper
def finite_extent(bits, first, size):
    """Finite elements: least, greatest key, least magnitude - 1; counts of NaN, inf, -inf."""
    lowest, highest, smallest = NO_LOWEST, NO_HIGHEST, NO_SMALLEST
    nan, posinf, neginf = ZERO, ZERO, ZERO
    for i in range(first, size):
        magnitude = np.uint32(bits[i] & MAGNITUDE)
        key = order_key(np.int32(bits[i]))
        finite = magnitude < INF
        # selected first, compared then: so the loop has no branch
        low = key if finite else NO_LOWEST
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
    """As ``scan`` of the finite elements, without histogram; counts of NaN, inf, -inf."""
    lowest, highest, smallest, nan, posinf, neginf = finite_extent(bits, first, size)
    total, squares = finite_moments(bits, first, size)
    low, high = np.float32(math.inf), np.float32(-math.inf)
    if lowest != NO_LOWEST:
        low, high = (
            float32_from(np.uint32(order_key(lowest))),
            float32_from(np.uint32(order_key(highest))),
        )
    return low, high, smallest, total, squares, nan, posinf, neginf


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


# The numba kernel that summarises float32 memory, and narrower formats widened block by block.

# sets of edges, a bit for each
SMALL_EDGES, OVERFLOWN_EDGE = 1 << FLUSHED | 1 << NORMAL, 1 << OVERFLOWN
# Exponents, as they stand in the bits, at which float16 begins to hold values otherwise.
FLUSHED_UP_TO, NORMAL_FROM, ABOVE_FROM = 127 - 25, 127 - 14, 127 + 16

# Words of the tally: float64 bits, then magnitude bits less one, then counts.
LOWEST, HIGHEST, TOTAL, SQUARES, SMALLEST, NANS, POSINFS, NEGINFS = range(8)
BELOW, EDGES = 8, 9  # subnormals; then what lies just beyond each edge of float16
WINDOW = 12  # the largest of the exponents whose pairs are counted; 0 while none are


@helper
def take_lanes(bins, first, last):
    """Add lanes of the bins ``first`` to ``last`` up in the first, and clear the others."""
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
    """Move the bins of normal exponents to the arena; counts below ``own_normal``, of float16."""
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


@inlined
def window_of(small, largest):
    """The window around the exponents of normal magnitudes; 0 where there is none."""
    if small < SMALLEST_NORMAL - ONE:
        return 0
    if small == NO_SMALLEST:
        return 127
    last = np.int64(largest >> np.uint32(23))
    room = WINDOW_EXPONENTS - 1 - last + np.int64(np.uint32(small + ONE) >> np.uint32(23))
    window = last + (room + 1) // 3  # more is to be expected below
    return window if room >= 0 and window <= 126 + WINDOW_TOP else 0


@inlined
def is_within(window, small, largest):
    """Whether all magnitudes are zero or have their exponents in the window."""
    first = np.int64(np.uint32(small + ONE) >> np.uint32(23))
    return small == NO_SMALLEST or (
        first > greatest(window - WINDOW_EXPONENTS, np.int64(0))
        and np.int64(largest >> np.uint32(23)) <= window
    )


@inlined
def take_pair(pairs, place):
    """The count of one pair, which is cleared."""
    found = ZERO
    for lane in range(PAIR_LANES):
        found = np.uint32(found + pairs[lane * PAIR_LANE + place])
        pairs[lane * PAIR_LANE + place] = ZERO
    return found


@helper
def take_pairs(scratch_address):
    """Move what was counted in pairs to the bins, and close the window."""
    tally = pointer_int64(scratch_address + 8 * L.TALLY)
    bins, pairs = pointer_uint32(scratch_address), pointer_uint32(scratch_address + 8 * L.PAIRS)
    codes = pointer_uint32(scratch_address + 8 * L.PAIRS + 4 * CODES_AT)
    for code in range(CODES):
        codes[code] = ZERO
    for code in range(CODES):
        found = ZERO
        for other in range(CODES):
            count = take_pair(pairs, code * CODES + other)
            codes[other] = np.uint32(codes[other] + count)
            found = np.uint32(found + count)
        codes[code] = np.uint32(codes[code] + found)
    for code in range(CODES):
        place, exponent = code // (CODES // 2) * 256, code % (CODES // 2)
        if exponent:
            place += exponent - (exponent + 1) // 9 - WINDOW_EXPONENTS + tally[WINDOW]
        if codes[code]:
            bins[place] = np.uint32(bins[place] + codes[code])
    tally[WINDOW] = 0


@inlined
def scan_block(block, count, scratch_address):
    """``scan`` of a block, of pairs where the tensor has a window that holds it."""
    tally = pointer_int64(scratch_address + 8 * L.TALLY)
    window, step = tally[WINDOW], ONE
    while window and count == L.BLOCK:
        factor = float32_from(np.uint32(np.uint32(127 + WINDOW_TOP - window) << np.uint32(23)))
        found = scan_pairs(block, count, scratch_address + 8 * L.PAIRS, factor, step)
        if step != ONE:  # the block is outside of the window: its pairs were taken back
            take_pairs(scratch_address)
            break
        largest = float32_bits(greatest(np.float32(-found[0]), found[1]))
        if found[5] < math.inf and is_within(window, found[2], largest):
            return found
        step = LESS_ONE
    return scan(block, count, scratch_address)


@helper
def take_block(block, count, scratch_address, following):
    """Count a block of float32 that lies in the first-level cache; so many elements follow."""
    bits, bins = pointer_uint32(block), pointer_uint32(scratch_address)
    tally = pointer_int64(scratch_address + 8 * L.TALLY)
    values = pointer_float64(scratch_address + 8 * L.TALLY)
    first = count // VECTOR * VECTOR
    low, high, small, edges, total, squares = scan_block(block, first, scratch_address)
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
    if first and following >= WORTH_PAIRS and not tally[WINDOW]:
        tally[WINDOW] = window_of(small, float32_bits(greatest(np.float32(-low), high)))
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
    """Write row and bins of the ``size`` counted elements; the count of NaN and inf."""
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
            block = load_block(address, start, count, kind, state)
            take_block(block, count, scratch_address, size - start - count)
        if pointer_int64(scratch_address + 8 * L.TALLY)[WINDOW]:
            take_pairs(scratch_address)
    if parts == L.ONE_PART:
        take_lanes(pointer_uint32(scratch_address), np.int64(0), np.int64(LANE - 1))
        return 0
    return write_row(state, kind, size)


# The loop of one thread of a team over its parts of a tensor, for OpenMP to call.

# Words of a job.
ADDRESS, SIZE, KIND, ITEM_SIZE, PARTS, PART_SIZE, STATES, KERNEL, THREAD_NUMBER, THREADS = range(10)
JOB_WIDTH = 10


@emitted(types.int64(*[types.int64] * 5))
def call_kernel(
    context: BaseContext, builder: ir.IRBuilder, function: ir.Value, *arguments: ir.Value
) -> ir.Value:
    """Call the kernel that lies at an address, with address, size, kind and state."""
    kind = context.call_conv.get_function_type(SIGNATURE.return_type, SIGNATURE.args)
    returned = cgutils.alloca_once(builder, ir.IntType(64))
    error = cgutils.alloca_once(builder, kind.args[1].pointee)
    builder.call(builder.inttoptr(function, kind.as_pointer()), [returned, error, *arguments])
    return builder.load(returned)


@emitted(types.int64(types.int64))
def call_count(context: BaseContext, builder: ir.IRBuilder, function: ir.Value) -> ir.Value:
    """Call the C function at an address, without arguments, for its int."""
    kind = ir.FunctionType(ir.IntType(32), [])
    found = builder.call(builder.inttoptr(function, kind.as_pointer()), [])
    return builder.sext(found, ir.IntType(64))


def count_parts(address):
    """Count this thread's share of the parts of a job."""
    job = pointer_int64(address)
    size, length, threads = job[SIZE], job[PART_SIZE], call_count(job[THREADS])
    part = call_count(job[THREAD_NUMBER])
    while part < job[PARTS]:
        first = part * length
        begin, state = (
            job[ADDRESS] + first * job[ITEM_SIZE],
            job[STATES] + part * (8 * L.STATE_WIDTH),
        )
        call_kernel(job[KERNEL], begin, least(length, size - first), job[KIND], state)
        part += threads


def compiled() -> Any:
    """``count_parts`` as a C function, from numba's cache if it can be written to."""
    signature = types.void(types.int64)
    try:
        return cfunc(signature, cache=True)(count_parts)
    except (RuntimeError, OSError):
        return cfunc(signature)(count_parts)


def address_of_kernel() -> int:
    """Where the compiled kernel begins."""
    result = summarise32.overloads[SIGNATURE.args]
    return int(result.library.get_pointer_to_function(result.fndesc.llvm_func_name))
