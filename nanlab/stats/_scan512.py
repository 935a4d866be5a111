"""The innermost loop for processors with AVX-512 as of Ice Lake and Zen 4: two goes over memory
that stays in the first-level cache.

First the reductions, then the histogram (``_histogram512``), 64 elements at a time: on one core of
a server 0.11 and 0.05 to 0.1 ns an element. While one of them computes, memory is asked for the
next block: of data beyond the second-level cache, which take 0.18 ns to read, both together take
0.2 to 0.27, and 0.03 more without that.
"""

# mypy: ignore-errors
# The types of compiled code are numba's, inferred from the signature that the kernels are compiled
# for.

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.core.base import BaseContext
from numba.core.typing.templates import Signature
from numba.extending import intrinsic

from nanlab.stats import _layout as L
from nanlab.stats._histogram512 import VECTOR, call, halved, load, together
from nanlab.stats._jit import (
    emit_prefetch,
    float32_bits,
    float32_from,
    greatest,
    inlined,
    pointer_uint32,
)
from nanlab.stats._scan import INTEGERS, LONG, SINGLES, WORD, add, filled, less, more
from nanlab.stats._windows512 import count_block

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
    """The smaller of two floats, ``b`` if one is NaN: VMINPS, which LLVM does not make of a
    comparison of what was read as integers."""
    return call(builder, "llvm.x86.avx512.min.ps.512", a, b, AS_SET)


def greatest_of(builder: ir.IRBuilder, a: ir.Value, b: ir.Value) -> ir.Value:
    """The greater of two floats, ``b`` if one is NaN."""
    return call(builder, "llvm.x86.avx512.max.ps.512", a, b, AS_SET)


def smaller(builder: ir.IRBuilder, a: ir.Value, b: ir.Value) -> ir.Value:
    """The smaller of two magnitudes."""
    return builder.select(builder.fcmp_ordered("<", a, b), a, b)


def nonzero_least(builder: ir.IRBuilder, bits: ir.Value, so_far: ir.Value) -> ir.Value:
    """The least magnitudes but zero. A subnormal is none, even if the processor is set to take it
    for one."""
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


@intrinsic
def reduce_block(
    typing_context: Any, address: types.Type, size: types.Type
) -> tuple[Signature, Callable[..., ir.Value]]:
    """``reductions`` of ``size`` elements, a multiple of 64."""

    def generate(
        context: BaseContext, builder: ir.IRBuilder, signature: Signature, arguments: Any
    ) -> ir.Value:
        begin, size = arguments
        numbers = reductions(builder, begin, builder.udiv(size, LONG(VECTOR)))
        return context.make_tuple(builder, signature.return_type, numbers)

    found = types.Tuple((types.float32, types.float32, types.float32, types.float64, types.float64))
    return found(types.int64, types.int64), generate


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
    """As ``_scan.scan``."""
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
