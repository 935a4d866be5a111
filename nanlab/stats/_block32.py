"""Memory as blocks of float32: narrower formats are widened, and what became of values is
subtracted."""

# mypy: ignore-errors
# The types of compiled code are numba's, inferred from the signature that the kernels are compiled
# for.

from __future__ import annotations

import numpy as np

from nanlab.stats import _layout as L
from nanlab.stats._jit import (
    float32_bits,
    helper,
    inlined,
    pointer_float32,
    pointer_uint8,
    pointer_uint16,
    pointer_uint32,
)


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
    """Address of the float32 bits of ``size`` elements from ``first`` on, widened where they are
    narrower."""
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
