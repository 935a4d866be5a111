"""The innermost loop over float32 memory in LLVM's terms: histogram and reductions."""

# mypy: ignore-errors
# The types of compiled code are numba's, inferred from the signature that the kernels are compiled
# for.

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.core.base import BaseContext

from nanlab.stats.jit import emit_prefetch, emitted, helper, pointer_uint32

# The innermost loop, written in LLVM's own terms: a histogram and five reductions in one go
# over float32 memory.
#
# Counting exponents keeps the scalar units busy and the reductions the vector units, so that
# together they take little longer than the counting alone; numba's compiler joins the two only
# on demand. Measured on one core of an x86 server: 0.36 ns an element, of which the histogram
# alone takes 0.30; as loops of their own, one after the other, 0.53.

VECTOR = 16  # elements at a time
LANES = 16  # histograms that take turns, so that no addition waits for the one before
LANE = 512  # bins of one histogram, uint32: sign and exponent
# magnitudes at which float16 begins to round otherwise: 2^-25, 2^-14 - 2^-25
EDGES = (0x33000000, 0x387FE000)
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


# What is reduced: how, from which start, and what each vector of elements contributes.
REDUCTIONS = (
    (less, filled(SINGLES, float("inf"))),
    (more, filled(SINGLES, float("-inf"))),
    (less_unsigned, filled(INTEGERS, 0xFFFFFFFF)),
    (less_unsigned, filled(INTEGERS, 0xFFFFFFFF)),
    (add, filled(DOUBLES, 0.0)),
    (add, filled(DOUBLES, 0.0)),
)


def contributions(builder: ir.IRBuilder, values: ir.Value) -> list[ir.Value]:
    """Values twice, magnitude bits - 1, excess over an edge, float64 values, squares."""
    magnitudes = builder.and_(builder.bitcast(values, INTEGERS), filled(INTEGERS, 0x7FFFFFFF))
    wide = builder.fpext(values, DOUBLES)
    squares = builder.fmul(wide, wide, flags=["contract"])
    above = [builder.sub(magnitudes, filled(INTEGERS, edge)) for edge in EDGES]
    return [
        values,
        values,
        builder.sub(magnitudes, filled(INTEGERS, 1)),
        less_unsigned(builder, *above),
        wide,
        squares,
    ]


def count_exponents(builder: ir.IRBuilder, address: ir.Value, bins: ir.Value) -> None:
    """Count one vector's signs and exponents, two elements per 64-bit word."""
    words = builder.inttoptr(address, LONG.as_pointer())
    for pair in range(VECTOR // 2):
        word = builder.load(builder.gep(words, [LONG(pair)]), align=4)
        lower = builder.and_(builder.lshr(word, LONG(23)), LONG(511))
        for element, exponent in enumerate((lower, builder.lshr(word, LONG(55)))):
            lane = (2 * pair + element) % LANES
            place = builder.gep(bins, [builder.add(exponent, LONG(lane * LANE))])
            builder.store(builder.add(builder.load(place), WORD(1)), place)


def reduced(builder: ir.IRBuilder, vector: ir.Value, join: Callable[..., ir.Value]) -> ir.Value:
    """One number from a vector."""
    elements = [builder.extract_element(vector, WORD(i)) for i in range(vector.type.count)]
    while len(elements) > 1:
        elements = [join(builder, a, b) for a, b in zip(elements[::2], elements[1::2], strict=True)]
    return elements[0]


SCANNED = types.Tuple(
    (types.float32, types.float32, types.uint32, types.uint32, types.float64, types.float64)
)


@emitted(SCANNED(types.int64, types.int64, types.int64))
def scan(context: BaseContext, builder: ir.IRBuilder, begin: Any, size: Any, bins: Any) -> ir.Value:
    """Count ``size`` float32 (a multiple of VECTOR) at ``address`` in the histograms at ``bins``;
    their least, greatest, least magnitude bits less one (a zero counts as the greatest), beyond
    which edges of float16 some may be, float64 sum and sum of squares.

    Least and greatest pass over NaN; a NaN or an infinity makes the sum of squares one.
    """
    histograms = builder.inttoptr(bins, WORD.as_pointer())
    results = [cgutils.alloca_once_value(builder, start) for _, start in REDUCTIONS]
    with cgutils.for_range(builder, builder.udiv(size, LONG(VECTOR))) as loop:
        address = builder.add(begin, builder.mul(loop.index, LONG(4 * VECTOR)))
        emit_prefetch(builder, builder.add(address, LONG(AHEAD)))
        values = builder.load(builder.inttoptr(address, SINGLES.as_pointer()), align=4)
        count_exponents(builder, address, histograms)
        for result, (join, _), value in zip(
            results, REDUCTIONS, contributions(builder, values), strict=True
        ):
            builder.store(join(builder, value, builder.load(result)), result)
    numbers = [
        reduced(builder, builder.load(r), join)
        for r, (join, _) in zip(results, REDUCTIONS, strict=True)
    ]
    beyond = builder.icmp_unsigned("<", numbers[3], WORD(BEYOND))
    numbers[3] = builder.select(beyond, WORD(BOTH_EDGES), WORD(0))
    return context.make_tuple(builder, SCANNED, numbers)


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
