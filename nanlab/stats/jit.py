"""Compilation of numba kernels, and the parts that all of them share."""

# mypy: ignore-errors
# The types of compiled code are numba's, inferred from the signature that the kernels are compiled
# for.

from __future__ import annotations

import inspect
import math
from collections.abc import Callable
from typing import Any

from llvmlite import ir
from numba import njit, types
from numba.core import cgutils
from numba.core.base import BaseContext
from numba.core.typing.templates import Signature
from numba.extending import intrinsic

from nanlab.stats import layout as L

# Compiling a numba kernel once, and reaching memory by its address from inside it.

SIGNATURE = types.int64(types.int64, types.int64, types.int64, types.int64)

_LEAN: dict[str, Any] = {"_nrt": False, "error_model": "numpy", "no_cfunc_wrapper": True}
# Helpers are inlined into the kernels, and cached with them: nobody calls them from Python or C.
helper = njit(no_cpython_wrapper=True, **_LEAN)
# The largest of them, and the small ones that one place calls: compiled with the caller, and not
# once more by themselves.
inlined = njit(no_cpython_wrapper=True, inline="always", **_LEAN)
# For sums only, whose order LLVM may then choose.
fast_helper = njit(no_cpython_wrapper=True, fastmath={"reassoc", "contract"}, **_LEAN)


def kernel(function: Callable[..., int]) -> Callable[[int, int, int, int], int]:
    """Compile ``function`` or load it from numba's cache; uncached if that is unwritable."""
    try:
        return njit(SIGNATURE, cache=True, **_LEAN)(function)
    except (RuntimeError, OSError):  # numba finds no directory to write to, or the disk is full
        return njit(SIGNATURE, **_LEAN)(function)


def emitted(signature: Signature) -> Any:
    """A function for use inside kernels, made of one that emits its code.

    It takes numba's context, the builder, and the values of the arguments.
    """

    def make(emit: Callable[..., ir.Value]) -> Any:
        def generate(
            context: BaseContext, builder: ir.IRBuilder, signature: Signature, arguments: Any
        ) -> ir.Value:
            found = emit(context, builder, *arguments)
            return context.get_dummy_value() if found is None else found

        def typed(typing_context: Any, *given: types.Type) -> tuple[Signature, Any]:
            return signature, generate

        names = ["context", *(f"argument{i}" for i in range(len(signature.args)))]
        named = [inspect.Parameter(n, inspect.Parameter.POSITIONAL_OR_KEYWORD) for n in names]
        typed.__signature__ = inspect.Signature(named)  # which numba asks for, one by one
        return intrinsic(typed)

    return make


def _pointer_to(element: types.Type) -> Any:
    """A function for use inside kernels: address -> pointer that can be indexed like an array."""
    kind = types.CPointer(element)

    @emitted(kind(types.int64))
    def pointer(context: BaseContext, builder: ir.IRBuilder, address: ir.Value) -> ir.Value:
        return builder.inttoptr(address, context.get_value_type(kind))

    return pointer


pointer_int64 = _pointer_to(types.int64)
pointer_int8 = _pointer_to(types.int8)
pointer_int16 = _pointer_to(types.int16)
pointer_int32 = _pointer_to(types.int32)
pointer_uint8 = _pointer_to(types.uint8)
pointer_uint16 = _pointer_to(types.uint16)
pointer_uint32 = _pointer_to(types.uint32)
pointer_uint64 = _pointer_to(types.uint64)
pointer_float32 = _pointer_to(types.float32)
pointer_float64 = _pointer_to(types.float64)


def _same_bits(given: types.Type, made: types.Type, kind: ir.Type) -> Any:
    """A function for use inside kernels: the number of another type that has the same bits."""
    return emitted(made(given))(lambda context, builder, value: builder.bitcast(value, kind))


float32_bits = _same_bits(types.float32, types.uint32, ir.IntType(32))
float32_from = _same_bits(types.uint32, types.float32, ir.FloatType())
float64_from = _same_bits(types.uint64, types.float64, ir.DoubleType())


def _chosen_by(comparison: str) -> Any:
    """A function for use inside kernels: of two numbers of one type, the one that the comparison
    prefers.

    min() and max() do the same, but numba compiles them anew for every pair of types: a tenth of a
    second each.
    """

    @intrinsic
    def choose(
        typing_context: Any, a: types.Type, b: types.Type
    ) -> tuple[Signature, Callable[..., ir.Value]]:
        def generate(
            context: BaseContext, builder: ir.IRBuilder, signature: Signature, arguments: Any
        ) -> ir.Value:
            if isinstance(a, types.Float):
                preferred = builder.fcmp_ordered(comparison, *arguments)
            elif a.signed:
                preferred = builder.icmp_signed(comparison, *arguments)
            else:
                preferred = builder.icmp_unsigned(comparison, *arguments)
            return builder.select(preferred, *arguments)

        return (a(a, b), generate) if a == b else None

    return choose


least, greatest = _chosen_by("<"), _chosen_by(">")


def emit_prefetch(builder: ir.IRBuilder, address: ir.Value, level: int = 1) -> None:
    """Ask for the cache line at ``address``, valid or not, into this level (1 to 3)."""
    byte, word = ir.IntType(8).as_pointer(), ir.IntType(32)
    called = cgutils.get_or_insert_function(
        builder.module, ir.FunctionType(ir.VoidType(), [byte, word, word, word]), "llvm.prefetch.p0"
    )
    # read, locality, data
    builder.call(called, [builder.inttoptr(address, byte), word(0), word(4 - level), word(1)])


@emitted(types.none(types.int64))
def prefetch(context: BaseContext, builder: ir.IRBuilder, address: ir.Value) -> None:
    """``emit_prefetch`` inside kernels."""
    emit_prefetch(builder, address)


# Parts that both numba kernels share: room for the row, bins of subnormals, bins into the
# arena.

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
