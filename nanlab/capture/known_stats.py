"""Statistics that are known already: those of a view, a copy, or a gradient put back into zeros."""

from __future__ import annotations

from typing import Any

import torch

from nanlab.capture.ledger import Entry
from nanlab.capture.plans import Plan
from nanlab.trace.recording import Recording

Tensor = torch.Tensor
# elements from which statistics are worked out from others rather than read from memory
WORTH_SAVING = 4096
# views whose numbers are others than those of their base
_FLIPS = frozenset({"_conj", "_neg_view"})
# A complex number counts as its two parts, so that a view of one as the other changes nothing.
_PARTS = {
    torch.complex32: torch.float16,
    torch.complex64: torch.float32,
    torch.complex128: torch.float64,
    torch.float16: torch.complex32,
    torch.float32: torch.complex64,
    torch.float64: torch.complex128,
}


def known_stat(
    recording: Recording,
    plan: Plan,
    entry: Entry | None,
    target: Tensor,
    whole: bool,
    sources: list[int],
) -> int:
    """The statistics that hold for a result too, as it has the elements of its first operand; -1 if
    there are none.

    entry: what the result is a view of, or None.
    whole: whether it shows all of that.
    """
    if not sources:
        return -1
    if plan.copies or (entry is not None and not entry.parts and (plan.same_elements or whole)):
        return _stat_of(recording, plan, sources[0], target) if plan.name not in _FLIPS else -1
    if plan.pads and target.numel() > WORTH_SAVING:
        numel = target.numel() * (2 if target.is_complex() else 1)
        known, chunk = recording.stat_of(sources[0]), recording.chunks[-1]
        if (
            known >> 32 == chunk.number
            and (row := chunk.stats.add_padded(known & 0xFFFFFFFF, numel)) >= 0
        ):
            return (chunk.number << 32) | row
    return -1


def _stat_of(recording: Recording, plan: Plan, source: int, target: Tensor) -> int:
    """The statistics of a row (or source), if a tensor on its memory shows the same numbers, each
    as often; else -1.

    It does not where ``view`` takes the memory for another dtype, where torch negates or conjugates
    as it reads, or where the row is that of an expanded or sparse tensor.
    """
    if target.is_neg() or target.is_conj():
        return -1
    dtype, stat = _dtype_of(recording, source), recording.stat_of(source)
    if stat < 0 or not (dtype is target.dtype or _PARTS.get(dtype) is target.dtype):
        return -1
    if plan.same_elements:
        return stat
    chunk = recording.chunks[stat >> 32]
    count = target.numel() * (2 if target.is_complex() else 1)
    return stat if chunk.stats.numel(chunk.stat_row(stat)) in (count, -1) else -1


def _dtype_of(recording: Recording, number: int) -> Any:
    """The dtype of a row or (negative) source; None if it is gone."""
    chunk = recording.chunks[-1]
    if number >= chunk.start:
        return recording.dtypes.items[chunk.dtype_of(number)]
    if number >= 0:
        row = recording.op(number)
        return row.dtype if row is not None else None
    return getattr(torch, recording.sources[number].dtype, None)
