"""How large each result is, step after step: one vector for each training step, made when it
ends."""

from __future__ import annotations

from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from nanlab.history import Place, Series
from nanlab.trace.chunk import Columns
from nanlab.trace.columns import stat_columns
from nanlab.trace.recording import Recording

Array = npt.NDArray[np.int64]
_FACTOR = np.uint64(1_000_003)


class StepRows:
    """The rows of one training step, and their numbers."""

    def __init__(self, recording: Recording, start: int, end: int) -> None:
        self.recording = recording
        self.start, self.end = max(start, recording.chunks[-1].start), end

    def __len__(self) -> int:
        return self.end - self.start

    @cached_property
    def columns(self) -> Columns:
        """The numbers of each row, a copy."""
        return self.recording.chunks[-1].columns(self.start, self.end)

    @cached_property
    def numbers(self) -> dict[str, npt.NDArray[Any]]:
        """The statistics of each row, by column."""
        return stat_columns(self.recording, self.columns.stat)

    @cached_property
    def floating(self) -> npt.NDArray[np.bool_]:
        """Whether each row is of a floating-point dtype."""
        floating = [
            isinstance(d, torch.dtype) and d.is_floating_point for d in self.recording.dtypes.items
        ]
        return np.array([*floating, False])[self.columns.dtype]

    @cached_property
    def largest(self) -> npt.NDArray[np.float64]:
        """The largest magnitude of each row; NaN where it has no finite element."""
        with np.errstate(invalid="ignore"):
            found: npt.NDArray[np.float64] = np.fmax(
                np.abs(self.numbers["min"]), np.abs(self.numbers["max"])
            )
        return found

    def all_zero(self) -> npt.NDArray[np.bool_]:
        """Rows whose elements are all zero."""
        numbers = self.numbers
        zero: npt.NDArray[np.bool_] = (
            self.floating & (numbers["numel"] > 0) & (numbers["zero"] == numbers["numel"])
        )
        return zero


def place_of(recording: Recording, position: int) -> Place | None:
    """Where a row is, in a form that outlives the row."""
    row = recording.op(position)
    if row is None:
        return None
    dtype = str(row.dtype).removeprefix("torch.")
    return Place(
        position,
        row.name,
        row.phase,
        recording.modules(row.module),
        row.node,
        row.place,
        row.site,
        dtype,
    )


def follow(series: Series, rows: StepRows, written: list[tuple[int, int]]) -> None:
    """Add a step to the series. ``written``: (owner, position) of the parameters and buffers that
    it wrote."""
    chosen = np.flatnonzero(rows.floating & rows.numbers["known"] & ~rows.columns.view)
    if not len(chosen):
        return
    columns, new = series.columns_of(rows.columns[chosen].identity, _keys)
    with np.errstate(divide="ignore", invalid="ignore"):
        magnitudes = np.log2(
            np.where(np.isnan(rows.largest[chosen]), 0.0, rows.largest[chosen])
        ).astype(np.float32)
    numbers = rows.numbers
    magnitudes[(numbers["nan"] + numbers["posinf"] + numbers["neginf"])[chosen] > 0] = np.inf
    column_at = (
        dict(zip((chosen + rows.start).tolist(), columns.tolist(), strict=True)) if len(new) else {}
    )
    for i in new.tolist():
        position = rows.start + int(chosen[i])
        place = place_of(rows.recording, position)
        assert place is not None  # the step that has just ended is never folded
        series.places.append(place)
        series.parents.append(_parents(rows.recording, position, column_at))
    if len(new):
        for owner, position in written:
            series.owners.setdefault(column_at.get(position, -1), owner)
    series.add(rows.start + len(rows), columns, magnitudes)


def _keys(identity: Array) -> npt.NDArray[np.uint64]:
    """One number for each identity that is the same in every step for the same result."""
    key = np.zeros(len(identity), np.uint64)
    for column in identity.T:
        key = key * _FACTOR + column.astype(np.uint64)
    order = np.argsort(key, kind="stable")
    ordered = key[order]
    first = np.flatnonzero(np.concatenate([[True], ordered[1:] != ordered[:-1]]))
    occurrence = np.arange(len(key)) - np.repeat(first, np.diff(np.append(first, len(key))))
    key[order] = ordered * _FACTOR + occurrence.astype(np.uint64)
    return key


def _parents(recording: Recording, position: int, column_at: dict[int, int]) -> tuple[int, ...]:
    """Columns of what a row was computed from, views looked through."""
    found = []
    for source, _ in recording.own_operands(position):
        for _ in range(8):
            row = recording.op(source)
            if row is None or not row.view:
                break
            source = next((p for p, _ in recording.operands(source)), -1)
        if source in column_at:
            found.append(column_at[source])
    return tuple(dict.fromkeys(found))


__all__ = ["StepRows", "follow", "place_of"]
