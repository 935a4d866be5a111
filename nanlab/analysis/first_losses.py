"""The places where a low-precision run first loses signal: values that became zero, epsilons that
do nothing."""

from __future__ import annotations

import linecache
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import torch

from nanlab.formats import format_of
from nanlab.operators import having
from nanlab.trace.columns import stat_columns
from nanlab.trace.recording import OPTIMIZER, PHASES, Op, Recording

if TYPE_CHECKING:
    from nanlab.stats import TensorStats
    from nanlab.trace import Trace

NARROW = (torch.float16, torch.bfloat16, torch.float8_e4m3fn, torch.float8_e5m2)
ELEMENTWISE = having("scales", in_place=True, lists=True) | having("casts") | {"pow", "copy_"}
SUMS = having("matmul") | {"linear", "mean"} | {"convolution"}
SCALES = having("scales", in_place=True)
ADDS = having("adds", in_place=True)
FLOORS = having("floors", in_place=True)
# times the smallest normal number: the size of products up to which zeros in their sum are lost
# ones
MOST_TERM = 16.0
LEAST = 0.01  # share of a result's values from which its loss is listed
_NUMBER = re.compile(r"(?<![\w.])(\d+\.?\d*e-\d+|0?\.0+[1-9]\d*)(?!\w)")
COLUMNS = (
    "position step phase op module file line source dtype numel lost share largest told_by".split()
)


@dataclass(frozen=True, slots=True)
class _Loss:
    lost: int  # values
    of: int  # values that should not be zero
    largest: float | None  # magnitude among those lost, where the float32 twin tells it
    told_by: str


def first_losses(trace: Trace) -> pd.DataFrame:
    """Where values were lost in low precision, one row for each operation and line, the first one
    first.

    A row is the first such result of an operation at a line: ``position``, ``step``, ``phase``,
    ``op``, ``module``, ``file``, ``line``, ``source``, ``dtype``, ``numel``; ``lost`` values of it
    became zero although they should not, ``share`` of those that should not be zero; ``largest``:
    their largest magnitude in float32, <NA> without a twin;
    ``told_by``: "float32 twin" (``shadow="float32"``), "counts" (more zeros came out than went in)
    or "epsilon" (a number was added, or taken as floor, that the dtype rounds to zero; it is lost
    whole: share 1).

    Each loss is that of one operation alone, measured against its own values: what a later
    operation makes of it is not counted again. Losses below one value in a hundred are left out.
    """
    recording: Recording | None = getattr(trace, "recording", None)
    found: dict[tuple[str, int, str], tuple[Any, ...]] = {}
    for row in _narrow_rows(recording) if recording is not None else ():
        position, key = row.position, (row.name, row.place, row.module)
        if key not in found and (loss := _loss_of(trace, position, row)) is not None:
            found[key] = _columns(trace, position, row, loss)
    frame = pd.DataFrame(list(found.values()), columns=COLUMNS).sort_values(
        "position", ignore_index=True
    )
    return frame.astype({"largest": "Float64"})


def flushed_at(trace: Trace, position: int) -> int:
    """Values of one row that became zero as it was computed; 0 where nothing tells them from true
    zeros."""
    recording: Recording | None = getattr(trace, "recording", None)
    row = recording.op(position) if recording is not None else None
    if recording is None or row is None or row.dtype not in NARROW:
        return 0
    loss = _loss_of(trace, position, row)
    return loss.lost if loss is not None and loss.told_by != "epsilon" else 0


def _narrow_rows(recording: Recording) -> Iterator[Op]:
    """The results in low precision that an operation may have lost values in."""
    dtypes = np.array([dtype in NARROW for dtype in recording.dtypes.items] or [False])
    numbered = np.array([name in ADDS | FLOORS for name in recording.ops.items] or [False])
    counted = np.array([name in ELEMENTWISE | SUMS for name in recording.ops.items] or [False])
    for chunk in recording.chunks:
        table = chunk.columns()
        if not len(table):
            continue
        where = chunk.where()
        narrow = dtypes[table.dtype] & (table.stat >= 0)
        stats = np.where(narrow, table.stat, -1)
        compared = counted[table.op] | np.isin(where, list(recording.shadows))
        wanted = narrow & (
            numbered[table.op] | (compared & (stat_columns(recording, stats)["zero"] > 0))
        )
        for at in np.flatnonzero(wanted).tolist():
            yield Op(recording, int(where[at]), table.row(at))


def _loss_of(trace: Trace, position: int, row: Op) -> _Loss | None:
    recording = trace.recording
    stats = recording.stats(position)
    if stats is None or not stats.known or not stats.numel or not stats.is_finite:
        return None
    op = row.name
    ways: list[Callable[[], _Loss | None]] = [
        lambda: _epsilon(trace, position, row, op, stats),
        lambda: _twin(recording, position),
    ]
    if position not in recording.shadows:
        ways.append(lambda: _counts(recording, position, op, stats))
    losses = (way() for way in ways)
    return next(
        (loss for loss in losses if loss is not None and loss.lost >= LEAST * loss.of > 0), None
    )


def _twin(recording: Recording, position: int) -> _Loss | None:
    """What the float32 twin of the operation holds and the result does not."""
    shadow = recording.shadows.get(position)
    if shadow is None or not shadow.flushed:
        return None
    twin = shadow.stats
    result = recording.op(position)
    if result is None:
        return None
    whole = shadow.flushed == twin.numel - twin.zero
    known = whole and twin.min is not None and twin.max is not None
    largest = (
        max(abs(twin.min or 0.0), abs(twin.max or 0.0))
        if known
        else format_of(result.dtype).rounds_to_zero
    )
    return _Loss(shadow.flushed, twin.numel - twin.zero, largest, "float32 twin")


def _counts(recording: Recording, position: int, op: str, stats: TensorStats) -> _Loss | None:
    """More zeros than those of the operands account for.

    A product of two values that are not zero is never zero but by underflow. A sum of products may
    cancel; it counts only where half of its values lie at the lower end of the dtype, and where its
    terms are small.
    """
    sources = list(dict.fromkeys(source for source, _ in recording.operands(position)))
    sources = sources[-1:] if op == "copy_" else sources
    operands = [s for source in sources if (s := recording.stats(source)) is not None and s.numel]
    if not operands or not all(s.is_finite for s in operands):
        return None
    if op in SUMS:
        if 2 * (stats.zero + stats.subnormal) < stats.numel or not _of_small_terms(
            recording, position, operands
        ):
            return None
    elif op not in ELEMENTWISE or any(
        s.numel > stats.numel for s in operands
    ):  # a view of a larger tensor
        return None
    if len(operands) == 1 and op in SCALES:
        row = recording.op(position)
        if len(recording.operands(position)) == 1 and row is not None and not row.scaled:
            return None  # times a number that may be zero
    accounted = min(stats.numel, sum(-(-s.zero * stats.numel // s.numel) for s in operands))
    return _Loss(stats.zero - accounted, stats.numel - accounted, None, "counts")


def _of_small_terms(recording: Recording, position: int, operands: list[TensorStats]) -> bool:
    """Whether the products that were summed up lie at the lower end of the dtype, so that zeros do
    not come from cancelling."""
    row = recording.op(position)
    if row is None or len(operands) < 2:
        return True
    size = (operands[-1].rms or 0.0) * (operands[-2].rms or 0.0)
    return bool(size <= MOST_TERM * format_of(row.dtype).smallest_normal)


def _epsilon(trace: Trace, position: int, row: Op, op: str, stats: TensorStats) -> _Loss | None:
    """A Python number that was added, or taken as floor, and that the dtype rounds to zero.

    One that the user's line does not spell is a library's own, and told only where there is a zero
    that it should prevent; an optimizer's own has a cause of its own.
    """
    recording = trace.recording
    if op not in ADDS | FLOORS:
        return None
    before = [recording.stats(source) for source, _ in recording.operands(position)]
    if len(before) != 1 or before[0] is None or before[0] != stats:
        return None
    limit = format_of(row.dtype).rounds_to_zero
    vanished = [abs(x) for x in recording.scalars.get(position, ()) if 0.0 < abs(x) <= limit]
    spelled = {float(number) for number in _NUMBER.findall(_text(trace, row))}
    matters = stats.zero > 0 and row.phase != OPTIMIZER
    told = [x for x in vanished if matters or x in spelled]
    return _Loss(stats.numel, stats.numel, max(told), "epsilon") if told else None


def _text(trace: Trace, row: Op) -> str:
    _, line, real = trace.recording.places[row.place]
    return linecache.getline(real, line).strip() if line else ""


def _columns(trace: Trace, position: int, row: Op, loss: _Loss) -> tuple[Any, ...]:
    recording = trace.recording
    file, line = row.file, row.line
    dtype = str(row.dtype).removeprefix("torch.")
    place = (row.name, row.module, file, line, _text(trace, row))
    stats = recording.stats(position)
    size = (dtype, stats.numel, loss.lost, loss.lost / loss.of, loss.largest, loss.told_by)
    return (position, recording.step_of(position), PHASES[row.phase], *place, *size)
