"""The numba kernel that summarises integers and booleans: range, zeros, mean and mean square."""

# mypy: ignore-errors
# The types of compiled code are numba's, inferred from the signature that the kernels are compiled
# for.

from __future__ import annotations

import math

import numpy as np

from nanlab.stats import _layout as L
from nanlab.stats._emit import begin_row, end_row, is_full, write_counts
from nanlab.stats._jit import (
    fast_helper,
    greatest,
    helper,
    kernel,
    least,
    pointer_float64,
    pointer_int8,
    pointer_int16,
    pointer_int32,
    pointer_int64,
    pointer_uint8,
)

LEAST, MOST = np.int64(-0x8000000000000000), np.int64(0x7FFFFFFFFFFFFFFF)
NO_MAGNITUDE = np.uint64(0xFFFFFFFFFFFFFFFF)
ZERO = np.uint32(0)
ONE = np.uint32(1)


@helper
def take_bytes(values, size):
    """Of at most 2^16 bytes: least, greatest, least magnitude less one (zero wraps round to the
    greatest), zeros, sum, sum of squares."""
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
    """Write the row of ``size`` elements; 0, for none is NaN or infinite, or FULL with nothing
    written."""
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
