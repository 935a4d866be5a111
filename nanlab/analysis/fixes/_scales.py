"""Candidates for a loss scale that is too large: the operation that overflowed, linear in the scale, at a lower one."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from nanlab.analysis.fixes._candidate import Candidate
from nanlab.analysis.fixes._operation import Operation, as_called
from nanlab.analysis.fixes._trial import ceiling
from nanlab.trace.recording import CALL, Recording

MOST_HALVINGS = 60


def scaled_operation(recording: Recording, position: int) -> Operation | None:
    """The call of a row as it was made; None where its operands were not kept."""
    row = recording.row(position) if position >= 0 else None
    kept = recording.kept.get(row[CALL]) if row is not None else None
    return as_called(kept) if kept is not None else None


def loss_factor(recording: Recording, position: int) -> float:
    """By how much the loss was multiplied whose backward pass a row belongs to, or leads to; 1 if it was not."""
    losses = recording.training.losses
    before = [loss for loss in losses if loss.position <= position]
    chosen = before[-1] if before else (losses[0] if losses else None)
    return chosen.factor if chosen is not None else 1.0


def lower_scale(op: Operation, factor: float) -> list[Candidate]:
    """The first power of two by which the scale must come down for this operation to hold its result with room to spare."""
    at = max(range(len(op.operands)), key=lambda i: _size(op.operands[i]))
    for k in range(1, MOST_HALVINGS):
        result = op.plain(*_scaled(op.operands, at, 2.0**-k))
        if not bool(torch.isfinite(result).all()):
            continue
        if float(result.abs().float().max()) <= ceiling(result.dtype):
            too_low = math.isfinite(factor) and factor * 2.0**-k < 1  # what overflows then is not the scale's doing
            return [] if too_low else [_candidate(op, at, 2.0**-k, factor)]
    return []


def _candidate(op: Operation, at: int, share: float, factor: float) -> Candidate:
    known = 1.0 < factor < float("inf")
    size = f"of {factor * share:g} instead of {factor:g}" if known else f"{1 / share:g} times smaller"
    return Candidate(
        f"a loss scale {size}: the largest value of this operation then leaves room in the dtype",
        (),
        lambda *ts: op.plain(*_scaled(ts, at, share)),
        snippet=f"scaler = torch.amp.GradScaler(init_scale={factor * share if known else 1.0 / share:g})"
        if known
        else f"loss_scale = loss_scale * {share:g}",
    )


def _size(operand: Any) -> float:
    if not isinstance(operand, Tensor):
        return abs(float(operand))
    finite = operand[torch.isfinite(operand)].abs()
    return float(finite.max()) if finite.numel() else 0.0


def _scaled(operands: Any, at: int, share: float) -> list[Any]:
    return [t * share if i == at else t for i, t in enumerate(operands)]
