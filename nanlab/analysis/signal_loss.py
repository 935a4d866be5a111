"""Where along the backward pass the gradient of each parameter was flushed to zero, and what would
have kept it."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import pandas as pd
import torch

from nanlab.analysis.precision import cast_shares
from nanlab.analysis.skipped_steps import scale_of
from nanlab.analysis.training import place_text
from nanlab.capture.flushes import CASTS
from nanlab.errors import UsageError
from nanlab.formats import HALF_PRECISION, FloatFormat, format_of
from nanlab.operators import having
from nanlab.stats import TensorStats
from nanlab.trace import Trace
from nanlab.trace.recording import Recording

KEPT = 1e-3  # share of the values up to which flushing is no loss
LOW = (
    # binary exponents above the smallest subnormal in which values must lie for zeros beside them
    # to be flushed ones
    2
)
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
        self.start = recording.starts[step]
        self.end = recording.starts[step + 1] if step + 1 < len(recording.starts) else recording.end
        self.losses = self._losses()
        self.room = self._room()

    def _losses(self) -> dict[int, Flushed]:
        """By position: the operations that flushed gradients."""
        recording = self.recording
        started = min(
            (p.position for p in recording.training.losses if p.position >= self.start),
            default=self.end,
        )
        found = {}
        for position in range(started, self.end):
            row = recording.op(position)
            if row is None or not row.backward or row.view:
                continue
            dtype = row.dtype
            gradients = [s for s, _ in recording.operands(position) if s >= started]
            if dtype in HALF_PRECISION and gradients:
                loss = _loss(recording, position, row.name, dtype)
                if loss is not None and loss.share > KEPT:
                    found[position] = loss
        return found

    def _room(self) -> int:
        """By which power of two the gradients could be larger without an overflow anywhere in
        float16."""
        recording, largest = self.recording, 0.0
        for position in range(self.start, self.end):
            row = recording.op(position)
            if row is not None and row.backward and row.dtype == torch.float16:
                stats = recording.stats(position)
                if stats is not None and not stats.is_finite:
                    return -1
                if stats is not None and stats.min is not None and self._is_gradient(position):
                    largest = max(largest, abs(stats.min), abs(stats.max))
        limit = format_of(torch.float16).max
        return math.floor(math.log2(limit / largest)) if largest > 0 else 64

    def _is_gradient(self, position: int) -> bool:
        """Whether a row was computed from another of the backward pass, rather than from saved
        values alone."""
        return any(
            (row := self.recording.op(source)) is not None and source >= self.start and row.backward
            for source, _ in self.recording.operands(position)
        )

    def losses_before(self, gradient: int) -> list[Flushed]:
        """The losses on the way from the loss to a gradient, in the order of the backward pass."""
        return [self.losses[p] for p in sorted(self._leading.get(gradient, ()))]

    @cached_property
    def _leading(self) -> dict[int, frozenset[int]]:
        """By row of the backward pass: the losses on the way to it. Rows follow what they were
        computed from."""
        found: dict[int, frozenset[int]] = {}
        for position in range(min(self.losses), self.end) if self.losses else ():
            row = self.recording.op(position)
            if row is None or not row.backward:
                continue
            here = {found[p] for p in self.recording.parents(position) if p in found}
            if position in self.losses:
                here.add(frozenset([position]))
            if here:
                found[position] = frozenset().union(*here) if len(here) > 1 else here.pop()
        return found

    def told(self, loss: Flushed) -> dict[str, Any]:
        """The columns that say where a loss is and what would have kept the values."""
        recording = self.recording
        row = recording.op(loss.position)
        assert row is not None
        info = recording.nodes.get(row.node)
        file, line, source = place_text(recording, info.line if info is not None else row.place)
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
        stat = recording.stat_of(operands[-1][0]) if operands else -1
        if stat < 0:
            return None
        chunk = recording.chunks[stat >> 32]
        row = chunk.stat_row(stat)
        wide = chunk.stats.stats(row), chunk.stats.histogram(row)
        return _exact(recording, position, *wide, "cast", dtype)
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
    """From the statistics of the values before they were rounded."""
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
    """From the zeros of a result that its operands do not explain, where values beside them reach
    the limit of the dtype.

    A zero of one operand makes at most that share of the result zero, row by row or element by
    element.
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


__all__ = ["Flushed", "signal_loss"]
