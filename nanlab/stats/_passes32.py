"""Passes over a block of float32 that only some blocks need: what is not finite, or subnormal."""

# mypy: ignore-errors
# The types of compiled code are numba's, inferred from the signature that the kernels are compiled
# for.

from __future__ import annotations

import math

import numpy as np

from nanlab.stats._emit import count_subnormal
from nanlab.stats._jit import fast_helper, float32_from, helper

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
ZERO, ONE = np.uint32(0), np.uint32(1)


@helper
def order_key(bits):
    """An int32 that sorts like the float32 with these bits; its own inverse."""
    return np.int32(bits ^ np.int32(np.int32(bits >> np.int32(31)) & np.int32(0x7FFFFFFF)))


@helper
def finite_extent(bits, first, size):
    """Of the finite elements from ``first`` on: least and greatest order key, least magnitude less
    one (zero wraps round to the greatest); then the counts of NaN, inf and -inf. Integers
    throughout, which LLVM turns into vectors."""
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
    """As ``scan`` over the finite elements from ``first`` on, without the histogram; then the
    counts of NaN, inf and -inf."""
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
