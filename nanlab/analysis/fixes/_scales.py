"""Candidates for scales: a lower loss scale where one overflows, a power of two before a cast that
flushes to zero."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from nanlab.analysis.fixes._candidate import Candidate
from nanlab.analysis.fixes._operation import Operation, as_called
from nanlab.analysis.fixes._trial import Trial, ceiling
from nanlab.analysis.precision import best_scale, cast_shares
from nanlab.analysis.skipped_overflows import is_gradient
from nanlab.trace.recording import BACKWARD, CALL, DTYPE, LINE, OP, PHASE, Recording

MOST_HALVINGS = 60


def scaled_operation(recording: Recording, position: int) -> Operation | None:
    """The call of a row as it was made; None where its operands were not kept."""
    row = recording.row(position) if position >= 0 else None
    kept = recording.kept.get(row[CALL]) if row is not None else None
    return as_called(kept) if kept is not None else None


def loss_factor(recording: Recording, position: int) -> float:
    """By how much the loss was multiplied whose backward pass a row belongs to, or leads to; 1 if
    it was not."""
    row, losses = recording.row(position), recording.training.losses
    before = [loss for loss in losses if loss.position <= position]
    after = losses[len(before) : len(before) + 1]
    backward = row is not None and row[PHASE] == BACKWARD
    chosen = (before[-1:] or after) if backward else (after or before[-1:])
    if not chosen:
        return 1.0
    return (
        chosen[0].factor
        if math.isfinite(chosen[0].factor)
        else _written_factor(recording, chosen[0].root)
    )


def _written_factor(recording: Recording, root: int) -> float:
    """The number that a product was made with which overflowed; inf where that cannot be told."""
    row = recording.row(root) if root >= 0 else None
    kept = (
        recording.kept.get(row[CALL])
        if row is not None and recording.ops.items[row[OP]] == "mul"
        else None
    )
    return (
        next((abs(float(a)) for a in kept.args if isinstance(a, int | float)), math.inf)
        if kept
        else math.inf
    )


def lower_scale(op: Operation, gradients: Sequence[int], factor: float | None) -> list[Candidate]:
    """The first power of two by which the loss must come down for this operation to hold its result
    with room to spare.

    gradients: which operands shrink with the loss.
    factor: the loss scale, inf or NaN where there is one that is not known; None: there is none.
    """
    at = max(gradients, key=lambda i: _size(op.operands[i]))
    for k in range(1, MOST_HALVINGS):
        result = op.plain(*_scaled(op.operands, at, 2.0**-k))
        if not bool(torch.isfinite(result).all()):
            continue
        if float(result.abs().float().max()) * _rows(result) <= ceiling(result.dtype):
            too_low = (
                factor is not None and math.isfinite(factor) and factor * 2.0**-k < 1
            )  # what overflows then is not the scale's doing
            return [] if too_low else [_candidate(op, at, 2.0**-k, factor)]
    return []


def gradients_among(recording: Recording, position: int, op: Operation) -> list[int]:
    """Which operands of a call are gradients, or else were made by multiplying the loss with its
    scale: any of them."""
    tensors = [i for i, operand in enumerate(op.operands) if isinstance(operand, Tensor)]
    found = [
        tensors[slot]
        for source, slot in recording.operands(position)
        if is_gradient(recording, source)
    ]
    row = recording.row(position)
    if found or row is None:
        return found
    return tensors[:1] if row[PHASE] == BACKWARD else list(range(len(op.operands)))


def _rows(result: Tensor) -> int:
    """How many rows a sum over all but the last dimension has, as the gradient of a bias is one."""
    return max(1, result.numel() // max(1, result.shape[-1])) if result.dim() > 1 else 1


def _candidate(op: Operation, at: int, share: float, factor: float | None) -> Candidate:
    if factor is not None and 1.0 < factor < math.inf:
        size = f"a loss scale of {factor * share:g} instead of {factor:g}"
        code = f"scaler = torch.amp.GradScaler(init_scale={factor * share:g})"
    elif factor is not None:
        size, code = (
            f"a loss scale {1 / share:g} times smaller",
            f"loss_scale = loss_scale * {share:g}",
        )
    else:
        size = f"a loss {1 / share:g} times smaller"
        code = f"(loss * {share:g}).backward()   # a smaller loss scale, or a mean instead of a sum"
    return Candidate(
        f"{size}: this operation's result then leaves room for the sums that follow",
        (),
        lambda *ts: op.plain(*_scaled(ts, at, share)),
        snippet=code,
    )


def _size(operand: Any) -> float:
    if not isinstance(operand, Tensor):
        return abs(float(operand))
    finite = operand[torch.isfinite(operand)].abs()
    return float(finite.max()) if finite.numel() else 0.0


def _scaled(operands: Any, at: int, share: float) -> list[Any]:
    return [t * share if i == at else t for i, t in enumerate(operands)]


def raised_before_cast(
    recording: Recording, position: int, line: int, backward: bool, by_hand: bool = False
) -> tuple[Candidate, Trial] | None:
    """The power of two by which what a cast flushed to zero has to be multiplied first.

    It follows from the exact exponent histogram of what was cast, which a power of two moves by
    whole bins. None where the row is no cast, or where no power of two saves the values.
    line: of the user's file; where the row was folded away, a later cast on the same line is taken.
    backward: in the backward pass. by_hand: the parameters are in half precision, of which a
    GradScaler takes no gradients.
    """
    position = _at_hand(recording, position, line, backward)
    row = recording.row(position) if position >= 0 else None
    read = recording.operands(position) if row is not None else []
    if row is None or not read or recording.ops.items[row[OP]] != "_to_copy":
        return None
    stat, dtype = recording.stat_of(read[0][0]), recording.dtypes.items[row[DTYPE]]
    if stat < 0 or not isinstance(dtype, torch.dtype) or not dtype.is_floating_point:
        return None
    chunk = recording.chunks[stat >> 32]
    histogram = chunk.stats.histogram(chunk.stat_row(stat))
    k = best_scale(histogram, dtype)
    before, after = cast_shares(histogram, dtype), cast_shares(histogram, dtype, k)
    if not before.zero or after.overflow or after.limit_overflow or after.zero >= before.zero / 10:
        return None
    title, code = _raising(k, dtype, backward, by_hand)
    lost = (
        f"by the histogram {before.zero:,} of {before.numel:,} values go to zero without it,"
        f" {after.zero:,} with it"
    )
    return Candidate(f"{title}: {lost}", (), None, snippet=code), Trial(True, None, None)


def _raising(k: int, dtype: torch.dtype, backward: bool, by_hand: bool) -> tuple[str, str]:
    """Title and code of a multiplication by 2**k."""
    if not backward:
        return (
            f"multiply by 2**{k} before the cast, divide after it in float32",
            f"(x * 2.0**{k}).to({dtype})",
        )
    if not by_hand:
        return f"a loss scale of 2**{k}", f"scaler = torch.amp.GradScaler(init_scale=2.0**{k})"
    code = (
        f"(loss * 2.0**{k}).backward()\nmaster.grad = p.grad.float() / 2.0**{k}   # of float32"
        " copies, which the optimizer updates"
    )
    return f"a loss scale of 2**{k}, divided out in float32", code


def _at_hand(recording: Recording, position: int, line: int, backward: bool) -> int:
    """The row itself, or a later cast to a narrow dtype on its line; -1 where there is none."""
    if position >= 0 and recording.row(position) is not None:
        return position
    for later, row in recording.rows():
        dtype = recording.dtypes.items[row[DTYPE]]
        narrow = isinstance(dtype, torch.dtype) and dtype.is_floating_point and dtype.itemsize <= 2
        cast = recording.ops.items[row[OP]] == "_to_copy" and (row[PHASE] == BACKWARD) == backward
        if narrow and cast and later > position and recording.places[row[LINE]][1] == line:
            return later
    return -1
