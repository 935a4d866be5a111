"""Parts that both numba kernels share: room for the row, bins of subnormals, bins into the
arena."""

# mypy: ignore-errors
# The types of compiled code are numba's, inferred from the signature that the kernels are compiled
# for.

from __future__ import annotations

import math

from nanlab.stats import _layout as L
from nanlab.stats._jit import helper, inlined, pointer_int64

# where the scratch keeps the exponents of subnormals: 64 positive, 64 negative
SUBNORMAL_BINS = 2 * 4096


@inlined
def is_full(state):
    """Whether the next row, or the bins that it might have, would not fit."""
    return (
        state[L.NEXT_ROW] >= state[L.ROW_CAPACITY]
        or state[L.ARENA_NEXT] + L.MOST_BINS > state[L.ARENA_CAPACITY]
    )


@helper
def count_subnormal(mantissa, negative, scratch):
    """Count one subnormal by the position of its leading bit."""
    scratch[SUBNORMAL_BINS + 64 * negative + math.frexp(float(mantissa))[1] - 1] += 1


@helper
def append_bin(state, exponent, negative, count):
    """Append ``count`` elements of one sign and exponent to the arena."""
    if count > 0:
        arena = pointer_int64(state[L.ARENA_ADDRESS])
        code = (exponent + L.EXPONENT_OFFSET) << 1 | negative
        arena[state[L.ARENA_NEXT]] = (count * state[L.TIMES]) << L.CODE_BITS | code
        state[L.ARENA_NEXT] += 1


@helper
def append_subnormals(state, scratch, smallest_exponent):
    """Move the subnormal bins of the scratch to the arena, leaving zeros behind."""
    for negative in range(2):
        for bit in range(64):
            place = SUBNORMAL_BINS + 64 * negative + bit
            append_bin(state, smallest_exponent + bit, negative, scratch[place])
            scratch[place] = 0


@inlined
def begin_row(state, numel):
    """The row to write, cleared but for its size and the beginning of its bins."""
    row = pointer_int64(state[L.ROWS_ADDRESS] + state[L.NEXT_ROW] * (8 * L.WIDTH))
    for word in range(L.WIDTH):
        row[word] = 0
    row[L.NUMEL] = numel * state[L.TIMES]
    row[L.FIRST_BIN] = state[L.ARENA_NEXT]
    return row


@inlined
def write_counts(state, row, zero, nan, posinf, neginf, subnormal, flushed, below, above):
    """The counts of a row, each element as often as it occurs."""
    times = state[L.TIMES]
    row[L.ZERO], row[L.NAN], row[L.POSINF], row[L.NEGINF] = (
        zero * times,
        nan * times,
        posinf * times,
        neginf * times,
    )
    row[L.SUBNORMAL], row[L.FP16_ZERO] = subnormal * times, flushed * times
    row[L.FP16_SUBNORMAL], row[L.FP16_INF] = below * times, above * times


@inlined
def end_row(state, row):
    """Note how many bins the row has, and move on; the count of NaN and inf."""
    row[L.BINS] = state[L.ARENA_NEXT] - row[L.FIRST_BIN]
    state[L.NEXT_ROW] += 1
    return row[L.NAN] + row[L.POSINF] + row[L.NEGINF]
