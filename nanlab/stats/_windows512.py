"""From windows of exponents to the histogram of a block: which windows are counted, and into which
bins."""

# mypy: ignore-errors
# The types of compiled code are numba's, inferred from the signature that the kernels are compiled
# for.

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.core.base import BaseContext
from numba.core.typing.templates import Signature
from numba.extending import intrinsic

from nanlab.stats._histogram512 import EIGHT, GROUP, VECTOR, Window, groups_of, window_counts
from nanlab.stats._scan import LONG, WORD

# Tables of a window; half of them for each sign, unless nothing is negative. A window of six would
# take another tenth of a second to compile.
UNSIGNED, FITTING, WIDE = 2, 4, 8
FALSE, TRUE = (ir.Constant(ir.IntType(1), truth) for truth in (0, 1))


@dataclass(frozen=True, slots=True)
class Block:
    """Elements to count, and what is known of them: the least exponent that is not of a zero, the
    greatest, whether any may be negative."""

    begin: ir.Value
    vectors: ir.Value
    least: ir.Value
    greatest: ir.Value
    signed: ir.Value

    def places(self, builder: ir.IRBuilder, planes: int) -> ir.Value:
        """How many places a sign has in a window of so many tables."""
        return builder.select(self.signed, LONG(4 * planes), LONG(8 * planes))

    def counts(self, builder: ir.IRBuilder, window: Window) -> list[ir.Value]:
        """Counts of the elements in a window, eight from each table; those that are zero or lie
        below come first."""
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
    """Count signs and exponents of a block in the bins, in the smallest window that takes them
    all."""
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


@intrinsic
def count_block(
    typing_context: Any,
    address: types.Type,
    size: types.Type,
    bins: types.Type,
    least: types.Type,
    greatest: types.Type,
    signed: types.Type,
) -> tuple[Signature, Callable[..., ir.Value]]:
    """``count_exponents`` of ``size`` elements, a multiple of 64, inside kernels."""

    def generate(
        context: BaseContext, builder: ir.IRBuilder, signature: Signature, arguments: Any
    ) -> ir.Value:
        begin, size, bins, least, greatest, signed = arguments
        block = Block(begin, builder.udiv(size, LONG(VECTOR)), least, greatest, signed)
        count_exponents(builder, builder.inttoptr(bins, WORD.as_pointer()), block)
        return context.get_dummy_value()

    return types.none(*[types.int64] * 5, types.boolean), generate
