"""Largest magnitude of every result, one sample per step; and sums that only grow."""

from __future__ import annotations

from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from nanlab.formats import HALF_PRECISION
from nanlab.operators import having, in_place
from nanlab.trace.chunk import Columns
from nanlab.trace.frames import stat_columns
from nanlab.trace.history import History, Place, Series
from nanlab.trace.op import BACKWARD
from nanlab.trace.recording import Recording

# How large each result is, step after step: one vector for each training step, made when it
# ends.

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
    module = recording.modules(row.module)
    return Place(position, row.name, row.phase, module, row.node, row.place, row.site, dtype)


def follow(series: Series, rows: StepRows, written: list[tuple[int, int]]) -> None:
    """Add a step to the series. ``written``: (owner, position) of parameters and buffers."""
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
    sources = [recording.unviewed(source) for source, _ in recording.own_operands(position)]
    return tuple(dict.fromkeys(column_at[s] for s in sources if s in column_at))


# Running sums: tensors that the program only adds to, step after step, and counts among them.

COUNT_ADDS = frozenset(("add", "sub"))


def counts(rows: StepRows, history: History) -> list[tuple[int, int]]:
    """(number, row) of single numbers that were added to in this step and in the last."""
    recording, columns = rows.recording, rows.columns
    if HALF_PRECISION.isdisjoint(recording.dtypes.items):
        return []
    narrow = np.array([d in HALF_PRECISION for d in recording.dtypes.items])[columns.dtype]
    adds = columns.named(recording.ops, COUNT_ADDS) & ~columns.inplace
    single = np.array([s in ((), (1,)) for s in recording.shapes.items])[columns.shape]
    found = []
    for position in (np.flatnonzero(narrow & adds & single) + rows.start).tolist():
        operands = recording.operands(position)
        if len(operands) != 1 or not any(recording.scalars.get(position, (1.0,))):
            continue
        owner = history.counts.pop(operands[0][0], None)
        if owner is not None:
            owner = _named_count(recording, position) if owner < 0 else owner
            found.append((owner, position))
        elif operands[0][0] >= rows.start:
            continue
        history.counts[position] = -1 if owner is None else owner
    for position in [p for p in history.counts if p < rows.start]:  # it went no further
        del history.counts[position]
    return found


def _named_count(recording: Recording, position: int, what: str = "count") -> int:
    """The number of a count or sum that is new."""
    row = recording.op(position)
    assert row is not None
    return recording.new_owner(f"the {what} at line {row.line}", "buffer")


ADDS_IN_PLACE = in_place(having("adds", "accumulates"))
PASSES = having("same_elements", "parts", "picks") | {"copy_"}
WRITES_BACK = in_place(having("assigns"))
NEW = -1  # it may be a sum: the step before did not add to it
UNNAMED = -2  # it is one: the step before did, for the first time


def sums(rows: StepRows, history: History, written: dict[int, int]) -> dict[int, int]:
    """Number of the sum by row, of additions in place to half-precision tensors, elements of them
    too.

    A sum was there before the step, and nothing but additions has changed it since the last one.
    written: number of the buffer or parameter by row. What is neither gets a number and a name of
    its own.
    """
    recording, columns = rows.recording, rows.columns
    before, history.sums = history.sums, {}
    if HALF_PRECISION.isdisjoint(recording.dtypes.items):
        return {}
    narrow = np.array([d in HALF_PRECISION for d in recording.dtypes.items])[columns.dtype]
    plain = narrow & (columns.phase != BACKWARD) & (columns.node < 0)
    adds = plain & columns.named(recording.ops, ADDS_IN_PLACE) & columns.inplace
    for step in reversed(history.optimizer_steps):
        if step.end <= rows.start:
            break
        adds[max(0, step.position - rows.start) : max(0, step.end - rows.start)] = False
    if not adds.any():
        return {}
    passes = plain & columns.named(recording.ops, PASSES | WRITES_BACK)
    now: dict[int, int] = {}  # number of the sum by row
    found: dict[int, int] = {}
    for position in (np.flatnonzero(adds | passes) + rows.start).tolist():
        own = [source for source, _ in recording.operands(position)]
        if not own:
            continue
        at = now.get(own[0])
        if at is None and own[0] < rows.start:
            at = before.get(own[0], NEW)
            at = UNNAMED if own[0] in before and at == NEW else at
        row = recording.op(position)
        if at is None or row is None:
            continue
        if adds[position - rows.start]:
            if not _adds_something(recording, position, own):
                continue
            owner = written.get(position, at)
            if owner >= 0 and recording.parameter_kinds[owner] == "parameter":
                continue
            owner = _named_count(recording, position, "sum") if owner == UNNAMED else owner
            if owner >= 0:
                found[position] = owner
            now[position] = owner
        elif row.name in WRITES_BACK or (row.name == "copy_" and len(own) > 1):
            if own[-1] in now:  # elements that were taken out, and added to
                now[position] = now[own[-1]]
        else:
            now[position] = at
    history.sums = now
    return found


def _adds_something(recording: Recording, position: int, own: list[int]) -> bool:
    """Whether a tensor or a number other than zero is added."""
    if len(own) == 1:
        return any(recording.scalars.get(position, ()))
    added = recording.stats(own[-1])
    return added is not None and not added.all_zero
