"""Counting the elements that lie just beyond an edge of float16, where their exponents do not
tell."""

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
from numba.core.typing.templates import Signature
from numba.extending import intrinsic

from nanlab.stats._jit import helper, pointer_uint32
from nanlab.stats._scan import INTEGERS, LONG, SINGLES, WORD, filled

UNROLLED = 4  # vectors at a time
LENGTH = UNROLLED * INTEGERS.count

# The edges. Magnitudes just beyond them, which round otherwise than the others of their exponent,
# are equal in these bits to these.
FLUSHED, NORMAL, OVERFLOWN = range(3)
# 2^-25: flushed to zero up to here
FLUSHED_BITS, FLUSHED_EQUAL = np.uint32(0x7FFFFFFF), np.uint32(0x33000000)
# 2^-14 - 2^-25: becomes 2^-14 from here on
NORMAL_BITS, NORMAL_EQUAL = np.uint32(0x7FFFE000), np.uint32(0x387FE000)
# 65520: becomes infinite from here on
OVERFLOWN_BITS, OVERFLOWN_EQUAL = np.uint32(0x7FFFF000), np.uint32(0x477FF000)


def spread(builder: ir.IRBuilder, number: ir.Value) -> ir.Value:
    """A vector of one number."""
    one = builder.insert_element(ir.Constant(INTEGERS, ir.Undefined), number, WORD(0))
    return builder.shuffle_vector(one, one, filled(INTEGERS, 0))


def less_known(builder: ir.IRBuilder, a: ir.Value, b: ir.Value) -> ir.Value:
    """The smaller of two floats that are not NaN: one instruction, where LLVM would make two of a
    comparison of what were integers."""
    function = ir.FunctionType(SINGLES, [SINGLES, SINGLES])
    called = cgutils.get_or_insert_function(builder.module, function, "llvm.minnum.v16f32")
    return builder.call(called, [a, b], fastmath=("nnan",))


def zeros_among(builder: ir.IRBuilder, vector: ir.Value) -> ir.Value:
    """A bit for each element, set if it is zero."""
    return builder.bitcast(
        builder.icmp_unsigned("==", vector, filled(INTEGERS, 0)), ir.IntType(INTEGERS.count)
    )


@intrinsic
def count_equal(
    typing_context: Any, address: types.Type, size: types.Type, bits: types.Type, wanted: types.Type
) -> tuple[Signature, Callable[..., ir.Value]]:
    """How many of ``size`` elements, a multiple of LENGTH, are equal in these bits to what is
    wanted.

    Such are few, so it is first seen whether there may be one: 0.018 ns an element with AVX-512,
    where counting takes 0.03. Differences are compared as floats, for which a processor has more
    units; without their highest bit, so that none of them is NaN.
    """

    def generate(
        context: BaseContext, builder: ir.IRBuilder, signature: Signature, arguments: Any
    ) -> ir.Value:
        begin, size, bits, wanted = arguments
        vectors = builder.inttoptr(begin, INTEGERS.as_pointer())
        masks, patterns = spread(builder, bits), spread(builder, wanted)
        finite = spread(builder, builder.and_(bits, WORD(0x3FFFFFFF)))
        finite_patterns = builder.and_(patterns, finite)
        found = cgutils.alloca_once_value(builder, LONG(0))
        with cgutils.for_range(builder, builder.udiv(size, LONG(LENGTH))) as loop:
            first = builder.mul(loop.index, LONG(UNROLLED))
            places = [builder.gep(vectors, [builder.add(first, LONG(i))]) for i in range(UNROLLED)]
            elements = [builder.load(place, align=4) for place in places]
            least = [
                builder.xor(builder.and_(element, finite), finite_patterns) for element in elements
            ]
            least = [builder.bitcast(difference, SINGLES) for difference in least]
            smallest = less_known(
                builder, less_known(builder, *least[:2]), less_known(builder, *least[2:])
            )
            zeros = zeros_among(builder, builder.bitcast(smallest, INTEGERS))
            with cgutils.if_unlikely(builder, builder.icmp_unsigned("!=", zeros, zeros.type(0))):
                for element in elements:
                    difference = builder.sub(builder.and_(element, masks), patterns)
                    equal = builder.zext(builder.ctpop(zeros_among(builder, difference)), LONG)
                    builder.store(builder.add(builder.load(found), equal), found)
        return builder.load(found)

    return types.int64(types.int64, types.int64, types.uint32, types.uint32), generate


@helper
def count_beyond(address, size, edge):
    """How many of ``size`` float32 lie just beyond an edge."""
    mask, wanted = FLUSHED_BITS, FLUSHED_EQUAL
    if edge == NORMAL:
        mask, wanted = NORMAL_BITS, NORMAL_EQUAL
    elif edge == OVERFLOWN:
        mask, wanted = OVERFLOWN_BITS, OVERFLOWN_EQUAL
    bits, vectors = pointer_uint32(address), size // LENGTH * LENGTH
    found = count_equal(address, vectors, mask, wanted)
    for i in range(vectors, size):
        found += np.int64(np.uint32(bits[i] & mask) == wanted)
    return found
