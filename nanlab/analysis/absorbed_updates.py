"""Absorbed updates: how bad one is, and whether it moves its parameter in float32."""

from __future__ import annotations

import math
from typing import Any, Literal

import torch

from nanlab.history import AbsorbedUpdate
from nanlab.program.updates import absorbed_update
from nanlab.trace.recording import Recording

Grade = Literal["error", "warning", "note"]
SHARE = 0.1  # of its optimizer's elements that a single stuck parameter must have to be an error
# the same in float32, where the gradient of a bias before a batch norm is rounding noise
MOST = 0.5
STOPPED = 3  # steps in which a counter must stand still
VARIES = 8  # the same of a sum of changing values
# Steps in which a small part that never moved must stand still to be an error: the first few may be
# those of a warm-up.
BEGUN = 8
ALONE = 16  # the same of a few numbers, a temperature say, that never move
# Steps in a row in which a parameter must stand still to be told though it moved before. One that
# moves every other step, as updates near half an ulp do, stands still four times in a row by chance
# once in 16; and the last three steps of a schedule that ends at zero are small in any dtype.
LASTS = 4
LONG = 10  # and to be told though that is a small part of its updates
# times as long as it ever stood still before it went on: compensated and stochastic updates come in
# jumps
LONGER = 3
# bits by which the rate must have fallen: at the same rate, what moved at first has mostly
# converged
DROPPED = 1.0
# log2 of the rms of gradients: in float32 what is below is rounding noise of numbers near 1, with 4
# bits to spare, as that of a bias before a batch norm; and what may be all that is left in a fit
# that has converged.
NOISE, SMALL = -20.0, -14.0
FEW = 8  # elements below which a single step proves nothing


def severity_from_start(
    recording: Recording, member: AbsorbedUpdate, count: int, share: float
) -> Grade | None:
    """How bad it is that a parameter never moved; None where it is no fault.

    count: of such parameters, share: of the elements on that line.
    """
    lasting = member.still >= (BEGUN if member.numel >= FEW else ALONE)
    if _wide(member):
        gradient = _gradient(member)
        if gradient < NOISE:
            return None
        if _rate_changed(member) > 0.0:
            return "note"
        large = (
            lasting and "addcdiv" in member.at.op
        )  # Adam divides by the gradient's size: the value itself is too large
        return "error" if large or (share >= MOST and gradient >= SMALL) else "warning"
    if _rate_changed(member) > 0.0:
        return "warning"  # a warm-up, perhaps
    average = member.by_hand and recording.parameter_kinds[member.owner] != "parameter"
    return "error" if average or count > 1 or share >= SHARE or lasting else "warning"


def severity_afterwards(member: AbsorbedUpdate) -> Grade | None:
    """How bad it is that a parameter no longer moves; None where it is no fault."""
    still, updates = member.still, member.still + member.moved
    if (
        not member.standing.updates
        or still < LASTS
        or still < LONGER * member.paused
        or member.numel < FEW
    ):
        return None
    if _wide(member) and (member.fell("rate") < DROPPED or _gradient(member) < SMALL):
        return None
    # a rate that float32 absorbs is meant as the end of a schedule
    whole: Grade = "note" if _wide(member) else "error"
    if member.fell("rate") < DROPPED:  # at the rate at which it moved
        return "note" if still >= LONG else None
    if _rate_changed(member):  # the end of a cosine, say
        return whole if 2 * still >= updates else "note" if 4 * still >= updates else None
    return whole if still >= LONG or 4 * still >= updates else None


def _rate_changed(member: AbsorbedUpdate) -> float:
    """Bits by which the learning rate rose (or fell: below 0) while the parameter stood still; 0 if
    it was less than one."""
    change = member.standing.last - member.standing.first
    return change if abs(change) >= 1.0 else 0.0


def _gradient(member: AbsorbedUpdate) -> float:
    """log2 of the rms of its gradient, on average over the updates without effect; inf where that
    is not known."""
    return (
        member.standing.gradient / member.standing.updates if member.standing.updates else math.inf
    )


def stopped(member: AbsorbedUpdate) -> bool:
    """Whether a counter or a sum went on for a while, and then no more."""
    steps = STOPPED if member.most <= member.update else VARIES
    return member.counter and member.still >= steps


def _wide(member: AbsorbedUpdate) -> bool:
    """Whether it is of float32's precision or better."""
    return getattr(torch, member.at.dtype).itemsize >= 4  # type: ignore[no-any-return]


def moves_in_float32(recording: Recording, owner: int, op: str) -> tuple[int, int] | None:
    """(elements that move in float32, all of them), of an update by ``op`` that moves none in half
    precision.

    The operation is run again on the operands of one such update. None where no step at hand has
    one.
    """
    kept = absorbed_update(recording, owner, op)
    if kept is None:
        return None
    try:
        with torch.no_grad():
            return _moved(kept.op, kept.args, kept.kwargs, _in_float32)
    except RuntimeError:
        return None


def _moved(op: Any, args: Any, kwargs: Any, change: Any) -> tuple[int, int]:
    """(elements that an operation in place changes, all of them), once ``change`` was applied to
    its tensors."""
    made = [_each(a, change) for a in args]
    target = made[0][0] if isinstance(made[0], list) else made[0]
    before = target.clone()
    op(*made, **{k: _each(v, change) for k, v in kwargs.items()})
    return int((target != before).sum()), target.numel()


def _each(value: Any, change: Any) -> Any:
    if isinstance(value, (list, tuple)):
        return [_each(v, change) for v in value]
    return change(value) if isinstance(value, torch.Tensor) else value


def _in_float32(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.float() if tensor.is_floating_point() else tensor
