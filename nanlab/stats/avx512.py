"""The innermost loop for AVX-512 (Ice Lake, Zen 4 and later): 64 exponents at a time."""

# mypy: ignore-errors
# The types of compiled code are numba's, inferred from the signature that the kernels are compiled
# for.

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.core.base import BaseContext
from numba.core.registry import cpu_target

from nanlab.stats import layout as L
from nanlab.stats.jit import (
    emit_prefetch,
    emitted,
    float32_bits,
    float32_from,
    greatest,
    inlined,
    pointer_uint32,
)
from nanlab.stats.scan import INTEGERS, LONG, SINGLES, WORD, add, filled, less, more

# Counting exponents 64 at a time, on processors with the AVX-512 extensions VBMI, GFNI and
# BITALG.
#
# The histogram is a positional population count. An element's place in a window of exponents is
# a number below 64. Tables of 64 bytes turn 64 places into bytes with one bit set, each table
# for 8 of the places. Carry-save adders add four such vectors up, bit by bit, before the fours
# among them are counted: 8 by 8 bits are transposed, and their population counts are the
# counts. Measured on one core of a server: 0.01 ns an element for each table, and 0.02 for the
# places; one by one (``scan``) 0.30.
#
# Instructions: Intel 64 and IA-32 Architectures Software Developer's Manual, volume 2 (VPERMB,
# VPTERNLOGD, GF2P8AFFINEQB, VPOPCNTB). Carry-save adders: Mula, Kurz, Lemire, Faster Population
# Counts Using AVX2 Instructions, The Computer Journal 61 (2018).

VECTOR = 64  # elements at a time
GROUP = 4  # vectors added up before anything is counted
# as LLVM calls them
NEEDED = ("+avx512f", "+avx512bw", "+avx512dq", "+avx512vbmi", "+avx512bitalg", "+gfni")

BYTE, HALF = ir.IntType(8), ir.IntType(16)
BYTES, TOPS, HALVES = ir.VectorType(BYTE, 64), ir.VectorType(HALF, 32), ir.VectorType(HALF, 64)
EIGHT = ir.VectorType(WORD, 8)
ZEROS = ir.Constant(BYTES, [0] * 64)
# eight identity matrices of 8 by 8 bits
UNIT = ir.Constant(BYTES, [1 << (i % 8) for i in range(64)])
EVEN = ir.Constant(ir.VectorType(ir.IntType(1), 32), [1, 0] * 16)
LOW_BYTES = ir.Constant(TOPS, [0x00FF] * 32)
# truth tables of three bits: a ^ b ^ c, at least two of them, b if a else c
SUM, CARRY, CHOICE = 0x96, 0xE8, 0xCA


def available() -> bool:
    """Whether numba compiles for a processor with the instructions needed."""
    features = cpu_target.target_context.codegen().magic_tuple()[2].split(",")
    return all(name in features for name in NEEDED)


def load(builder: ir.IRBuilder, vector: ir.VectorType, address: ir.Value) -> ir.Value:
    """A vector from memory, aligned or not."""
    return builder.load(builder.inttoptr(address, vector.as_pointer()), align=1)


def call(builder: ir.IRBuilder, name: str, *arguments: ir.Value) -> ir.Value:
    """An operation on vectors that LLVM knows by name, whose result is like its first argument."""
    kind = ir.FunctionType(arguments[0].type, [a.type for a in arguments])
    return builder.call(cgutils.get_or_insert_function(builder.module, kind, name), arguments)


def together(
    builder: ir.IRBuilder, join: Callable[..., ir.Value], vectors: Sequence[ir.Value]
) -> ir.Value:
    """One vector from several, pair by pair, so that few of them wait for each other."""
    while len(vectors) > 1:
        vectors = [join(builder, a, b) for a, b in zip(vectors[::2], vectors[1::2], strict=True)]
    return vectors[0]


def of_three(
    builder: ir.IRBuilder, a: ir.Value, b: ir.Value, c: ir.Value, truth_table: int
) -> ir.Value:
    """The bytes whose bits a truth table gives for the bits of three vectors."""
    words = [builder.bitcast(v, INTEGERS) for v in (a, b, c)]
    return builder.bitcast(
        call(builder, "llvm.x86.avx512.pternlog.d.512", *words, WORD(truth_table)), BYTES
    )


def splat(builder: ir.IRBuilder, value: ir.Value) -> ir.Value:
    """64 times the lowest byte of a number."""
    one = builder.insert_element(
        ir.Constant(BYTES, ir.Undefined), builder.trunc(value, BYTE), WORD(0)
    )
    return builder.shuffle_vector(one, one, ir.Constant(ir.VectorType(WORD, 64), [0] * 64))


@dataclass(frozen=True, slots=True)
class Window:
    """Exponents that are counted in one go.

    An element's place is its exponent less ``base``, between 0 (it is zero, or lies below the
    window) and ``last`` (it may lie above), and ``offset`` more if it is negative.
    """

    planes: int  # tables
    base: ir.Value
    last: ir.Value | None  # None: no element lies above
    offset: ir.Value | None  # None: no element is negative


def top_halves(builder: ir.IRBuilder, address: ir.Value) -> ir.Value:
    """The upper 16 bits of 32 elements in some order: every other one is read two bytes on."""
    return builder.select(
        EVEN,
        load(builder, TOPS, builder.add(address, LONG(2))),
        load(builder, TOPS, builder.add(address, LONG(64))),
    )


def places_of(builder: ir.IRBuilder, address: ir.Value, window: Window) -> ir.Value:
    """The place of each of 64 elements."""
    first, second = (top_halves(builder, builder.add(address, LONG(128 * i))) for i in range(2))
    low, high = builder.lshr(first, ir.Constant(TOPS, [7] * 32)), builder.add(second, second)
    places = call(
        builder,
        "llvm.usub.sat.v64i8",
        of_three(builder, LOW_BYTES, low, high, CHOICE),
        splat(builder, window.base),
    )
    if window.last is not None:
        places = call(builder, "llvm.umin.v64i8", places, splat(builder, window.last))
    if window.offset is None:
        return places
    signs = of_three(
        builder, LOW_BYTES, builder.lshr(first, ir.Constant(TOPS, [8] * 32)), second, CHOICE
    )
    negative = builder.icmp_signed("<", signs, ZEROS)
    return builder.select(negative, builder.add(places, splat(builder, window.offset)), places)


def population(builder: ir.IRBuilder, bits: ir.Value) -> ir.Value:
    """How often each of 8 bits is set in 64 bytes, which stands eight times over."""
    return call(
        builder,
        "llvm.ctpop.v64i8",
        call(builder, "llvm.x86.vgf2p8affineqb.512", UNIT, bits, BYTE(0)),
    )


@dataclass(frozen=True, slots=True)
class Counts:
    """The counts of one table: bits not yet counted, of weight 1 and 2; number of fours."""

    ones: ir.Value
    twos: ir.Value
    fours: ir.Value


def add_bits(builder: ir.IRBuilder, counts: Counts, bits: Sequence[ir.Value]) -> None:
    """Add four vectors of bits to the counts."""
    ones, twos = builder.load(counts.ones), builder.load(counts.twos)
    carries = []
    for a, b in (bits[:2], bits[2:]):
        carries.append(of_three(builder, ones, a, b, CARRY))
        ones = of_three(builder, ones, a, b, SUM)
    builder.store(ones, counts.ones)
    builder.store(of_three(builder, twos, *carries, SUM), counts.twos)
    fours = population(builder, of_three(builder, twos, *carries, CARRY))
    builder.store(builder.add(builder.load(counts.fours), fours), counts.fours)


def fold(builder: ir.IRBuilder, counts: Counts) -> ir.Value:
    """The eight sums of one table."""
    few = population(builder, builder.load(counts.twos))
    few = builder.add(builder.add(few, few), population(builder, builder.load(counts.ones)))
    fours = builder.shl(
        builder.zext(builder.load(counts.fours), HALVES), ir.Constant(HALVES, [2] * 64)
    )
    sums = builder.add(fours, builder.zext(few, HALVES))
    return builder.zext(halved(builder, lambda b, x, y: b.add(x, y), sums, 8), EIGHT)


def halved(
    builder: ir.IRBuilder, join: Callable[..., ir.Value], vector: ir.Value, width: int
) -> ir.Value:
    """A vector of this width: the halves of the vector are joined until it is that short."""
    half = vector.type.count
    while half > width:
        half //= 2
        parts = [
            builder.shuffle_vector(
                vector,
                ir.Constant(vector.type, ir.Undefined),
                ir.Constant(ir.VectorType(WORD, half), list(range(first, first + half))),
            )
            for first in (0, half)
        ]
        vector = join(builder, *parts)
    return vector


def padded(builder: ir.IRBuilder, begin: ir.Value, vectors: ir.Value, place: ir.Value) -> ir.Value:
    """The address of a vector; that of zeros for those behind the last."""
    zeros = ir.Constant(ir.ArrayType(WORD, VECTOR), [0] * VECTOR)
    address = builder.ptrtoint(cgutils.global_constant(builder, "zeros", zeros), LONG)
    there = builder.icmp_unsigned("<", place, vectors)
    return builder.select(there, builder.add(begin, builder.mul(place, LONG(4 * VECTOR))), address)


def window_counts(
    builder: ir.IRBuilder, begin: ir.Value, vectors: ir.Value, window: Window
) -> list[ir.Value]:
    """Counts of the elements in the places of a window, eight from each table, and of zeros that
    fill up the last group.

    A byte holds the fours of 31 groups; a block has 16. A quarter of the next block is asked for
    meanwhile: memory would rest otherwise.
    """
    tables = [
        Counts(*(cgutils.alloca_once_value(builder, ZEROS) for _ in range(3)))
        for _ in range(window.planes)
    ]
    with cgutils.for_range(builder, groups_of(builder, vectors)) as loop:
        first = builder.mul(loop.index, LONG(GROUP))
        ahead = builder.add(builder.add(begin, LONG(7 * L.BLOCK)), builder.mul(first, LONG(VECTOR)))
        for line in range(GROUP):
            emit_prefetch(builder, builder.add(ahead, LONG(64 * line)), level=2)
        places = [
            places_of(builder, padded(builder, begin, vectors, builder.add(first, LONG(i))), window)
            for i in range(GROUP)
        ]
        for plane, counts in enumerate(tables):
            table = ir.Constant(BYTES, [1 << (i % 8) if i // 8 == plane else 0 for i in range(64)])
            bits = [
                call(builder, "llvm.x86.avx512.permvar.qi.512", table, place) for place in places
            ]
            add_bits(builder, counts, bits)
    return [fold(builder, counts) for counts in tables]


def groups_of(builder: ir.IRBuilder, vectors: ir.Value) -> ir.Value:
    """How many groups there are, of which the last may be filled up."""
    return builder.udiv(builder.add(vectors, LONG(GROUP - 1)), LONG(GROUP))


# From windows of exponents to the histogram of a block: which windows are counted, and into
# which bins.

# Tables of a window; half of them for each sign, unless nothing is negative. A window of six would
# take another tenth of a second to compile.
UNSIGNED, FITTING, WIDE = 2, 4, 8
FALSE, TRUE = (ir.Constant(ir.IntType(1), truth) for truth in (0, 1))


@dataclass(frozen=True, slots=True)
class Block:
    """Elements to count: least exponent of a non-zero, greatest, whether any is negative."""

    begin: ir.Value
    vectors: ir.Value
    least: ir.Value
    greatest: ir.Value
    signed: ir.Value

    def places(self, builder: ir.IRBuilder, planes: int) -> ir.Value:
        """How many places a sign has in a window of so many tables."""
        return builder.select(self.signed, LONG(4 * planes), LONG(8 * planes))

    def counts(self, builder: ir.IRBuilder, window: Window) -> list[ir.Value]:
        """Counts in a window, eight from each table; zeros and those below come first."""
        counts = window_counts(builder, self.begin, self.vectors, window)
        filled_up = builder.sub(
            builder.mul(groups_of(builder, self.vectors), LONG(GROUP)), self.vectors
        )
        zeros = builder.trunc(builder.mul(filled_up, LONG(VECTOR)), WORD)
        known = builder.sub(builder.extract_element(counts[0], WORD(0)), zeros)
        return [builder.insert_element(counts[0], known, WORD(0)), *counts[1:]]


def take(
    builder: ir.IRBuilder, counts: list[ir.Value], plane: int, element: int, condition: ir.Value
) -> ir.Value:
    """One count, which becomes zero, if the condition holds; else zero."""
    count = builder.select(
        condition, builder.extract_element(counts[plane], WORD(element)), WORD(0)
    )
    cleared = builder.insert_element(counts[plane], WORD(0), WORD(element))
    counts[plane] = builder.select(condition, cleared, counts[plane])
    return builder.zext(count, LONG)


def add_to_bins(
    builder: ir.IRBuilder, bins: ir.Value, base: ir.Value, signed: ir.Value, counts: list[ir.Value]
) -> None:
    """Add the counts of a window to their bins."""
    half = len(counts) // 2
    for plane, count in enumerate(counts):
        place = builder.add(base, LONG(8 * plane))
        if plane >= half:
            place = builder.add(place, builder.select(signed, LONG(256 - 8 * half), LONG(0)))
        place = builder.bitcast(builder.gep(bins, [place]), EIGHT.as_pointer())
        builder.store(builder.add(builder.load(place, align=4), count), place, align=4)


def add_zeros(builder: ir.IRBuilder, bins: ir.Value, zeros: ir.Value) -> None:
    """Add to the bin of zeros."""
    builder.store(builder.add(builder.load(bins), builder.trunc(zeros, WORD)), bins)


def count_unsigned(builder: ir.IRBuilder, bins: ir.Value, block: Block) -> None:
    """Count a block without negative elements whose exponents all fit into one narrow window."""
    base = builder.sub(block.least, LONG(1))
    counts = block.counts(builder, Window(UNSIGNED, base, None, None))
    zeros = take(builder, counts, 0, 0, TRUE)
    add_to_bins(builder, bins, base, FALSE, counts)
    add_zeros(builder, bins, zeros)


def count_fitting(builder: ir.IRBuilder, bins: ir.Value, block: Block) -> None:
    """Count a block whose exponents all fit into one window."""
    base, signed = builder.sub(block.least, LONG(1)), block.signed
    offset = builder.select(signed, LONG(4 * FITTING), LONG(0))
    counts = block.counts(builder, Window(FITTING, base, None, offset))
    zeros = builder.add(
        take(builder, counts, 0, 0, TRUE), take(builder, counts, FITTING // 2, 0, signed)
    )
    add_to_bins(builder, bins, base, signed, counts)
    add_zeros(builder, bins, zeros)


def count_wide(builder: ir.IRBuilder, bins: ir.Value, block: Block) -> None:
    """Count a block window by window.

    The first window is nearly always the only one. Where it is not, as with a mask of huge values,
    the last comes next.
    """
    size, signed, half = builder.mul(block.vectors, LONG(VECTOR)), block.signed, WIDE // 2
    zeros, left = cgutils.alloca_once_value(builder, size), cgutils.alloca_once_value(builder, size)
    last = builder.sub(block.places(builder, WIDE), LONG(1))
    offset = builder.select(signed, LONG(4 * WIDE), LONG(0))
    width, lowest = builder.sub(last, LONG(1)), builder.sub(block.least, LONG(1))
    windows = builder.sdiv(
        builder.add(builder.sub(block.greatest, lowest), builder.sub(width, LONG(1))), width
    )
    with cgutils.for_range(builder, windows) as loop:
        is_first = builder.icmp_signed("==", loop.index, LONG(0))
        later = builder.select(builder.icmp_signed("==", loop.index, LONG(1)), windows, loop.index)
        turn = builder.select(is_first, LONG(0), builder.sub(later, LONG(1)))
        base = builder.add(lowest, builder.mul(turn, width))
        counts = block.counts(builder, Window(WIDE, base, last, offset))
        below = builder.add(
            take(builder, counts, 0, 0, TRUE), take(builder, counts, half, 0, signed)
        )
        above = builder.add(
            take(builder, counts, WIDE - 1, 7, TRUE), take(builder, counts, half - 1, 7, signed)
        )
        add_to_bins(builder, bins, base, signed, counts)
        builder.store(builder.select(is_first, below, builder.load(zeros)), zeros)
        others = builder.sub(builder.load(left), builder.sub(size, builder.add(below, above)))
        builder.store(builder.select(is_first, above, others), left)
        with cgutils.if_unlikely(builder, builder.icmp_signed("==", builder.load(left), LONG(0))):
            loop.do_break()
    add_zeros(builder, bins, builder.load(zeros))


def count_exponents(builder: ir.IRBuilder, bins: ir.Value, block: Block) -> None:
    """Count signs and exponents of a block in bins, in the smallest window for all."""
    span = builder.sub(block.greatest, block.least)
    narrow = builder.and_(
        builder.icmp_signed("<", span, LONG(8 * UNSIGNED - 1)), builder.not_(block.signed)
    )
    fits = builder.icmp_signed("<", span, builder.sub(block.places(builder, FITTING), LONG(1)))
    with builder.if_else(narrow) as (then, otherwise):
        with then:
            count_unsigned(builder, bins, block)
        with otherwise, builder.if_else(fits) as (fitting, wide):
            with fitting:
                count_fitting(builder, bins, block)
            with wide:
                count_wide(builder, bins, block)


@emitted(types.none(*[types.int64] * 5, types.boolean))
def count_block(
    context: BaseContext, builder: ir.IRBuilder, begin: Any, size: Any, bins: Any, *kind: Any
) -> None:
    """``count_exponents`` of ``size`` elements, a multiple of 64; kind: least, greatest, signed."""
    block = Block(begin, builder.udiv(size, LONG(VECTOR)), *kind)
    count_exponents(builder, builder.inttoptr(bins, WORD.as_pointer()), block)


# The innermost loop for processors with AVX-512 as of Ice Lake and Zen 4: two goes over memory
# that stays in the first-level cache.
#
# First the reductions, then the histogram (``avx512``), 64 elements at a time: on one
# core of a server 0.11 and 0.05 to 0.1 ns an element. While one of them computes, memory is
# asked for the next block: of data beyond the second-level cache, which take 0.18 ns to read,
# both together take 0.2 to 0.27, and 0.03 more without that.

LANES = 1  # histograms
NEAR = 1 << 11  # bytes ahead to ask for into the first-level cache
HALF_SINGLES, DOUBLES = ir.VectorType(ir.FloatType(), 8), ir.VectorType(ir.DoubleType(), 8)
LEAST_MAGNITUDE = 0b1010  # VRANGEPS: the lesser magnitude, without a sign
AS_SET = WORD(4)  # round as the processor is set
MAGNITUDE, SMALLEST_NORMAL, NONE = (
    np.uint32(0x7FFFFFFF),
    np.uint32(0x00800000),
    np.uint32(0xFFFFFFFF),
)
# exponents in which float16 begins to round otherwise somewhere: 2^-25, 2^-14 - 2^-25
FLUSHED, NORMAL = 102, 112


def least_of(builder: ir.IRBuilder, a: ir.Value, b: ir.Value) -> ir.Value:
    """The smaller float, ``b`` if one is NaN: VMINPS, which LLVM would not emit here."""
    return call(builder, "llvm.x86.avx512.min.ps.512", a, b, AS_SET)


def greatest_of(builder: ir.IRBuilder, a: ir.Value, b: ir.Value) -> ir.Value:
    """The greater of two floats, ``b`` if one is NaN."""
    return call(builder, "llvm.x86.avx512.max.ps.512", a, b, AS_SET)


def smaller(builder: ir.IRBuilder, a: ir.Value, b: ir.Value) -> ir.Value:
    """The smaller of two magnitudes."""
    return builder.select(builder.fcmp_ordered("<", a, b), a, b)


def nonzero_least(builder: ir.IRBuilder, bits: ir.Value, so_far: ir.Value) -> ir.Value:
    """The least magnitudes but zero and, whatever the processor does, subnormals."""
    magnitudes = builder.and_(bits, filled(INTEGERS, 0x7FFFFFFF))
    mask = builder.bitcast(
        builder.icmp_unsigned("!=", magnitudes, filled(INTEGERS, 0)), ir.IntType(16)
    )
    values, which = builder.bitcast(bits, SINGLES), WORD(LEAST_MAGNITUDE)
    return call(
        builder, "llvm.x86.avx512.mask.range.ps.512", so_far, values, which, so_far, mask, AS_SET
    )


def reduce_extent(builder: ir.IRBuilder, address: ir.Value, places: list[ir.Value]) -> None:
    """Take 64 elements into the least, the greatest, and two lots of least magnitudes but zero."""
    # Read as integers: LLVM would compare with zero as floats otherwise.
    bits = [load(builder, INTEGERS, builder.add(address, LONG(64 * i))) for i in range(4)]
    singles = [builder.bitcast(b, SINGLES) for b in bits]
    for place, join in zip(places[:2], (least_of, greatest_of), strict=True):
        builder.store(join(builder, together(builder, join, singles), builder.load(place)), place)
    for place, vectors in zip(places[2:], (bits[:2], bits[2:]), strict=True):
        so_far = builder.load(place)
        for vector in vectors:
            so_far = nonzero_least(builder, vector, so_far)
        builder.store(so_far, place)


def reduce_moments(
    builder: ir.IRBuilder, address: ir.Value, sums: ir.Value, places: list[ir.Value]
) -> None:
    """Take 64 elements into the float64 sum and two sums of squares."""
    values = [
        builder.fpext(load(builder, HALF_SINGLES, builder.add(address, LONG(32 * i))), DOUBLES)
        for i in range(8)
    ]
    builder.store(add(builder, together(builder, add, values), builder.load(sums)), sums)
    for place, vectors in zip(places, (values[:4], values[4:]), strict=True):
        squares = builder.load(place)
        for v in vectors:
            squares = add(builder, builder.fmul(v, v, flags=["contract"]), squares)
        builder.store(squares, place)


def reductions(builder: ir.IRBuilder, begin: ir.Value, vectors: ir.Value) -> list[ir.Value]:
    """Least, greatest, least magnitude but zero, sum and sum of squares of as many times 64
    elements.

    Three quarters of the next block are asked for meanwhile, and the rest by the histogram: memory
    never rests.
    """
    starts = [filled(SINGLES, s * math.inf) for s in (1, -1, 1, 1)] + [
        ir.Constant(DOUBLES, [0.0] * 8)
    ] * 3
    places = [cgutils.alloca_once_value(builder, start) for start in starts]
    with cgutils.for_range(builder, vectors) as loop:
        address = builder.add(begin, builder.mul(loop.index, LONG(4 * VECTOR)))
        for line in range(4):
            emit_prefetch(builder, builder.add(address, LONG(NEAR + 64 * line)), level=1)
        ahead = builder.add(
            builder.add(begin, LONG(4 * L.BLOCK)), builder.mul(loop.index, LONG(3 * VECTOR))
        )
        for line in range(3):
            emit_prefetch(builder, builder.add(ahead, LONG(64 * line)), level=2)
        reduce_extent(builder, address, places[:4])
        reduce_moments(builder, address, places[4], places[5:])
    low, high, *small, total, first, second = (builder.load(place) for place in places)
    found = (low, high, smaller(builder, *small), total, add(builder, first, second))
    joins = (less, more, smaller, add, add)
    return [
        builder.extract_element(halved(builder, join, vector, 1), WORD(0))
        for vector, join in zip(found, joins, strict=True)
    ]


REDUCED = types.Tuple((types.float32, types.float32, types.float32, types.float64, types.float64))


@emitted(REDUCED(types.int64, types.int64))
def reduce_block(context: BaseContext, builder: ir.IRBuilder, begin: Any, size: Any) -> ir.Value:
    """``reductions`` of ``size`` elements, a multiple of 64."""
    numbers = reductions(builder, begin, builder.udiv(size, LONG(VECTOR)))
    return context.make_tuple(builder, REDUCED, numbers)


@inlined
def least_magnitude(bits, size):
    """The least magnitude bits less one; a zero counts as the greatest."""
    small = NONE
    for i in range(size):
        above_zero = np.uint32(np.uint32(bits[i] & MAGNITUDE) - np.uint32(1))
        small = above_zero if above_zero < small else small
    return small


@inlined
def count_alike(bins, size, magnitude, total, squares):
    """Count elements that are zero or of one magnitude, by what they and their squares sum up to.

    Both sums are of at most 4096 equal numbers, of 24 and 48 bits: the first is exact, the second
    nearly.
    """
    value = np.float64(float32_from(magnitude))
    if value > 0.0:
        count, surplus = np.int64(squares / (value * value) + 0.5), np.int64(total / value)
        exponent, positive = np.int64(magnitude >> np.uint32(23)), (count + surplus) >> 1
        bins[exponent] += np.uint32(positive)
        bins[256 + exponent] += np.uint32(count - positive)
        size -= count
    bins[0] += np.uint32(size)


@inlined
def scan(address, size, scratch_address):
    """As ``scan``."""
    low, high, nonzero, total, squares = reduce_block(address, size)
    small = np.uint32(float32_bits(nonzero) - np.uint32(1)) if nonzero < math.inf else NONE
    finite = squares < math.inf
    # NaN hides others from VRANGEPS; a processor told to ignore subnormals sees zeros
    if not finite or nonzero == 0.0:
        small = least_magnitude(pointer_uint32(address), size)
    bins = pointer_uint32(scratch_address)
    flushed = bins[FLUSHED] + bins[FLUSHED + 256]
    normal = bins[NORMAL] + bins[NORMAL + 256]
    magnitude = np.uint32(small + np.uint32(1))
    largest = np.uint32(float32_bits(greatest(np.float32(-low), high)) & MAGNITUDE)
    if finite and magnitude == largest:
        count_alike(bins, size, magnitude, total, squares)
    elif size > 0:
        first = np.int64(greatest(magnitude, SMALLEST_NORMAL) >> np.uint32(23))
        last = np.int64(largest >> np.uint32(23)) if finite else 255
        count_block(address, size, scratch_address, first, last, not (finite and low >= 0.0))
    edges = (
        np.int64(bins[FLUSHED] + bins[FLUSHED + 256] != flushed)
        | np.int64(bins[NORMAL] + bins[NORMAL + 256] != normal) << 1
    )
    return low, high, small, edges, total, squares
