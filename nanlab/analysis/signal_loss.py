"""Where low precision loses signal: the first losses, and the gradients flushed to zero."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import pandas as pd
import torch

from nanlab.analysis.precision import cast_shares
from nanlab.analysis.training import CASTS, rows_of_step, scale_of
from nanlab.errors import UsageError
from nanlab.formats import HALF_PRECISION, FloatFormat, format_of
from nanlab.operators import having
from nanlab.stats import TensorStats
from nanlab.trace import Trace
from nanlab.trace.frames import stat_columns
from nanlab.trace.op import OPTIMIZER, Op
from nanlab.trace.recording import PHASES, Recording

# The places where a low-precision run first loses signal: values that became zero, epsilons
# that do nothing.

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
FIRST_LOSS_COLUMNS = (
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
        key = row.name, row.place, row.module
        if key not in found and (loss := _loss_of(row)) is not None:
            found[key] = _columns(row, loss)
    frame = pd.DataFrame(list(found.values()), columns=FIRST_LOSS_COLUMNS).sort_values(
        "position", ignore_index=True
    )
    return frame.astype({"largest": "Float64"})


def flushed_at(trace: Trace, position: int) -> int:
    """Values of a row that became zero when computed; 0 if they look like true zeros."""
    recording: Recording | None = getattr(trace, "recording", None)
    row = recording.at(position) if recording is not None else None
    loss = _loss_of(row) if row is not None and row.dtype in NARROW else None
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


def _loss_of(row: Op) -> _Loss | None:
    stats = row.stats
    if stats is None or not stats.known or not stats.numel or not stats.is_finite:
        return None
    exact = row.position in row.recording.shadows
    losses = (way(row, stats) for way in (_epsilon, _twin if exact else _counts))
    return next((each for each in losses if each and each.lost >= LEAST * each.of > 0), None)


def _twin(row: Op, stats: TensorStats) -> _Loss | None:
    """What the float32 twin of the operation holds and the result does not."""
    shadow = row.recording.shadows[row.position]
    twin = shadow.stats
    whole = shadow.flushed == twin.numel - twin.zero
    known = whole and twin.min is not None and twin.max is not None
    largest = twin.largest if known else format_of(row.dtype).rounds_to_zero
    return _Loss(shadow.flushed, twin.numel - twin.zero, largest, "float32 twin")


def _counts(row: Op, stats: TensorStats) -> _Loss | None:
    """Zeros of a result that its operands' zeros do not explain.

    A product of non-zero values is 0 only by underflow. A sum of products may cancel: it counts
    only where half of its values lie at the lower end of the dtype, and where its terms are small.
    """
    op, sources = row.name, list(dict.fromkeys(source for source, _ in row.operands))
    sources = sources[-1:] if op == "copy_" else sources
    known = map(row.recording.stats, sources)
    operands = [s for s in known if s is not None and s.numel]
    if not operands or not all(s.is_finite for s in operands):
        return None
    if op in SUMS:
        low = 2 * (stats.zero + stats.subnormal) >= stats.numel
        if not low or not _of_small_terms(row, operands):
            return None
    elif op not in ELEMENTWISE or any(s.numel > stats.numel for s in operands):
        return None  # a view of a larger tensor
    if len(operands) == len(row.operands) == 1 and op in SCALES and not row.scaled:
        return None  # times a number that may be zero
    accounted = min(stats.numel, sum(-(-s.zero * stats.numel // s.numel) for s in operands))
    return _Loss(stats.zero - accounted, stats.numel - accounted, None, "counts")


def _of_small_terms(row: Op, operands: list[TensorStats]) -> bool:
    """Whether summed products lie at the dtype's lower end: zeros are no cancellation."""
    if len(operands) < 2:
        return True
    size = (operands[-1].rms or 0.0) * (operands[-2].rms or 0.0)
    return bool(size <= MOST_TERM * format_of(row.dtype).smallest_normal)


def _epsilon(row: Op, stats: TensorStats) -> _Loss | None:
    """A Python number, added or taken as floor, that the dtype rounds to zero.

    A number that the user's line does not spell is a library's. It counts only where the result
    holds a zero that it should prevent; an optimizer's has a cause of its own.
    """
    if row.name not in ADDS | FLOORS:
        return None
    if [row.recording.stats(source) for source, _ in row.operands] != [stats]:
        return None
    limit, numbers = format_of(row.dtype).rounds_to_zero, row.recording.scalars
    vanished = [abs(x) for x in numbers.get(row.position, ()) if 0.0 < abs(x) <= limit]
    spelled = {float(number) for number in _NUMBER.findall(row.source)}
    matters = stats.zero > 0 and row.phase != OPTIMIZER
    told = [x for x in vanished if matters or x in spelled]
    return _Loss(stats.numel, stats.numel, max(told), "epsilon") if told else None


def _columns(row: Op, loss: _Loss) -> tuple[Any, ...]:
    dtype = str(row.dtype).removeprefix("torch.")
    place = (row.name, row.module, row.file, row.line, row.source)
    size = (dtype, row.stats.numel, loss.lost, loss.lost / loss.of, loss.largest, loss.told_by)
    return (row.position, row.step, PHASES[row.phase], *place, *size)


# Where along the backward pass the gradient of each parameter was flushed to zero, and what
# would have kept it.

KEPT = 1e-3  # share of the values up to which flushing is no loss
# binary exponents above the smallest subnormal in which values must lie for zeros beside them to
# be flushed ones
LOW = 2
# Operations whose result is zero only where an operand is, but for rounding.
PRODUCTS = having("zero_from_zero")
COLUMNS = (
    "parameter step zero flushed op node file line source dtype measured needed_log2_scale kept_by"
    " position".split()
)


@dataclass(frozen=True, slots=True)
class Flushed:
    """A backward operation that flushed gradients."""

    position: int
    share: float  # of the values that were not zero before
    # "cast", "twin": exact; "zeros": a lower bound, from zeros that no operand explains
    measured: str
    # power of two by which the gradients would have to be larger to keep all but KEPT of them
    needed: int


def signal_loss(trace: Trace) -> pd.DataFrame:
    """A row for each parameter and place where its gradient lost more than a thousandth of its
    values to zero.

    Columns: ``parameter``, ``step``, ``zero`` (share of its gradient's elements that are zero in
    the end), ``flushed`` (share of the non-zero values that became zero at this place), ``op``,
    ``node``, ``file``, ``line``, ``source`` of the forward operation, ``dtype``, ``measured``,
    ``needed_log2_scale``, ``kept_by``: the loss scale that would have kept them ("loss scale
    2^11"), or a wider dtype where such a scale overflows elsewhere in the backward pass. A
    parameter that lost nothing has one row without a place.

    measured: "cast" and "twin" are exact counts, the latter from ``watch(shadow="float32")``;
    "zeros" is a lower bound, told from zeros that no operand explains, and its scale is an estimate
    from the root mean square. Covers the steps whose tables are at hand (``keep=``). Raises
    UsageError if there is no gradient among them.
    """
    recording = trace.recording
    steps = [s for s in recording.training.parameters if s.gradient is not None and s.gradient >= 0]
    if not steps:
        raise UsageError("no gradients at hand; watch a training step that calls backward")
    rows: list[dict[str, Any]] = []
    numbers = {recording.step_of(s.position) for s in steps}
    passes = {n: _Pass(recording, n, scale_of(recording, n)) for n in sorted(numbers)}
    for step in steps:
        number = recording.step_of(step.position)
        assert step.gradient is not None
        stats = recording.stats(step.gradient)
        found = passes[number].losses_before(step.gradient)
        common = {
            "parameter": recording.parameter_names[step.owner],
            "step": number,
            "zero": stats.zero / max(stats.numel, 1) if stats is not None else None,
        }
        rows += [{**common, **passes[number].told(loss)} for loss in found] or [
            {**common, "flushed": 0.0}
        ]
    frame = pd.DataFrame(rows, columns=COLUMNS)
    for name in ("node", "line", "needed_log2_scale", "position"):
        frame[name] = frame[name].astype("Int64")
    return frame


class _Pass:
    """The backward passes of one training step."""

    def __init__(self, recording: Recording, step: int, scale: float) -> None:
        self.recording, self.scale = recording, scale
        rows = rows_of_step(recording, step)
        self.start, self.end = rows.start, rows.stop
        self.losses = self._losses()
        self.room = self._room()

    def _losses(self) -> dict[int, Flushed]:
        """By position: the operations that flushed gradients."""
        recording, found = self.recording, {}
        losses = (p.position for p in recording.training.losses if p.position >= self.start)
        started = min(losses, default=self.end)
        for position in range(started, self.end):
            row = recording.at(position)
            if not row.backward or row.view or row.dtype not in HALF_PRECISION:
                continue
            if any(source >= started for source, _ in row.operands):
                loss = _loss(recording, position, row.name, row.dtype)
                if loss is not None and loss.share > KEPT:
                    found[position] = loss
        return found

    def _room(self) -> int:
        """The power of two that gradients could gain without an overflow in float16."""
        recording, largest = self.recording, 0.0
        for position in range(self.start, self.end):
            row = recording.at(position)
            if row.backward and row.dtype == torch.float16 and (stats := row.stats) is not None:
                if not stats.is_finite:
                    return -1
                # it comes from another backward row, not from saved values alone
                made = (s >= self.start and recording.at(s).backward for s, _ in row.operands)
                if stats.min is not None and any(made):
                    largest = max(largest, stats.largest)
        limit = format_of(torch.float16).max
        return math.floor(math.log2(limit / largest)) if largest > 0 else 64

    def losses_before(self, gradient: int) -> list[Flushed]:
        """The losses on the way from the loss to a gradient, in the order of the backward pass."""
        return [self.losses[p] for p in sorted(self._leading.get(gradient, ()))]

    @cached_property
    def _leading(self) -> dict[int, frozenset[int]]:
        """By backward row: the losses on its way. Rows follow what they come from."""
        found: dict[int, frozenset[int]] = {}
        for position in range(min(self.losses), self.end) if self.losses else ():
            row = self.recording.at(position)
            if not row.backward:
                continue
            here = {found[p] for p in row.inputs if p in found}
            if position in self.losses:
                here.add(frozenset([position]))
            if here:
                found[position] = frozenset().union(*here) if len(here) > 1 else here.pop()
        return found

    def told(self, loss: Flushed) -> dict[str, Any]:
        """The columns that say where a loss is and what would have kept the values."""
        recording = self.recording
        row = recording.at(loss.position)
        info = recording.nodes.get(row.node)
        file, line, source = recording.line_at(info.line if info is not None else row.place)
        dtype = str(row.dtype).removeprefix("torch.")
        power = round(math.log2(self.scale)) + loss.needed
        fits = loss.needed <= self.room or dtype != "float16"
        return {
            "flushed": loss.share,
            "op": row.name,
            "node": row.node if row.node >= 0 else None,
            "file": file,
            "line": line,
            "source": source,
            "dtype": dtype,
            "measured": loss.measured,
            "needed_log2_scale": power,
            "kept_by": f"loss scale 2^{power}" if fits else "bfloat16",
            "position": loss.position,
        }


def _loss(recording: Recording, position: int, op: str, dtype: torch.dtype) -> Flushed | None:
    """What an operation flushed; None where that cannot be told."""
    stats = recording.stats(position)
    if stats is None or not stats.zero:
        return None
    if op in CASTS:
        operands = recording.operands(position)
        histogram = recording.exponents(operands[-1][0]) if operands else None
        if histogram is None:
            return None
        wide = recording.stats(operands[-1][0])
        return _exact(recording, position, wide, histogram, "cast", dtype)
    shadow = recording.twins.get(position)
    if shadow is not None:
        return _exact(recording, position, shadow.stats, shadow.exponents, "twin", dtype)
    return _from_zeros(recording, position, op, format_of(dtype))


def _exact(
    recording: Recording,
    position: int,
    wide: TensorStats,
    histogram: pd.Series[int],
    measured: str,
    dtype: torch.dtype,
) -> Flushed | None:
    """Exact counts of flushed values, from the statistics before rounding."""
    narrow = recording.stats(position)
    values = wide.numel - wide.zero
    if not values:
        return None
    needed = next((k for k in range(65) if _flushed(histogram, dtype, k) <= KEPT), 64)
    return Flushed(position, max(0, narrow.zero - wide.zero) / values, measured, needed)


def _flushed(histogram: pd.Series[int], dtype: torch.dtype, power: int) -> float:
    shares = cast_shares(histogram, dtype, power)
    return (shares.zero + shares.limit_zero) / max(shares.numel, 1)


def _from_zeros(
    recording: Recording, position: int, op: str, limits: FloatFormat
) -> Flushed | None:
    """A lower bound of flushed values: zeros that no operand explains, in a result whose other
    values reach the limit of the dtype.

    A zero of one operand explains at most its own share of zeros, row by row or element by element.
    """
    stats = recording.stats(position)
    if (
        op not in PRODUCTS
        or stats.absmin is None
        or stats.absmin >= limits.smallest_subnormal * 2.0**LOW
    ):
        return None
    whole = 1.0
    for source, _ in recording.operands(position)[:2]:
        operand = recording.stats(source)
        if operand is None:
            return None
        whole *= 1.0 - operand.zero / max(operand.numel, 1)
    share = max(0.0, 1.0 - (1.0 - stats.zero / stats.numel) / whole) if whole > 0 else 0.0
    # Of values that are normally distributed the share below t is 0.8 t / rms.
    needed = (
        math.ceil(math.log2(0.8 * limits.rounds_to_zero / (KEPT * stats.rms))) if stats.rms else 64
    )
    return Flushed(position, share, "zeros", max(0, needed))
