"""What an optimizer step is given: gradients that were unscaled, clipped or averaged since the
backward pass, and its rates."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from itertools import groupby, takewhile
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import torch

from nanlab.capture.ledger import storage_of
from nanlab.capture.magnitudes import StepRows, place_of
from nanlab.capture.scaler_order import UNSCALES
from nanlab.history import GradientEdit, History, ParameterStep, Place
from nanlab.operators import having
from nanlab.trace.op import walk
from nanlab.trace.recording import Recording, Sink

if TYPE_CHECKING:
    from nanlab.capture.dispatch import OpRecorder

CLAMPS = having("bounds", in_place=True, lists=True) | {"where"}
FACTORS = having("scales", in_place=True, lists=True)
MOST_HOPS = 12
MOST_VISITS = 4000  # rows that are walked back over from the gradients of one optimizer step
NEAR = 0.01  # relative distance up to which a factor is taken for the loss scale


def note_edits(rows: StepRows, history: History, steps: list[ParameterStep]) -> None:
    """Add an entry to ``history.edits`` for each optimizer step that took other gradients than
    backward had left.

    The way back is walked for one parameter only, the one whose gradient shrank most; the numbers
    of the others are in their own rows.
    """
    recent = takewhile(lambda loss: loss.position >= rows.start, reversed(history.losses))
    factor = next((loss.factor for loss in recent if 2.0 < loss.factor < math.inf), 1.0)
    for position, group in groupby(steps, key=lambda step: step.position):
        changed = [
            s
            for s in group
            if s.used is not None and s.gradient is not None and s.used > s.gradient
        ]
        chosen = _shrunk_most(rows, changed)
        if chosen is not None:
            scale, at, constant = _way_back(rows.recording, chosen, factor)
            history.edits.append(GradientEdit(position, scale, at, constant))


def bad_rates(
    recording: Recording, source: Callable[[torch.Tensor], int], optimizer: Any
) -> list[Sink]:
    """A sink for each learning rate that the program keeps as a tensor and that holds a NaN or an
    infinity."""
    rates = [
        source(g["lr"]) for g in optimizer.param_groups if isinstance(g.get("lr"), torch.Tensor)
    ]
    return [
        Sink("state", rate, recording.end - 1, "learning rate")
        for rate in rates
        if recording.may_be_bad(rate)
    ]


def bad_moments(
    ops: OpRecorder, optimizer: Any, owner_of: Callable[[torch.Tensor], int]
) -> list[Sink]:
    """A sink for each tensor of an optimizer's state that holds a NaN or an infinity."""
    recording, found = ops.recording, []
    states = optimizer.state.items() if recording.bad or recording.pending else ()
    for parameter, state in states:
        if not isinstance(parameter, torch.Tensor):
            continue
        for name, value in state.items():
            storage = (
                storage_of(value)
                if isinstance(value, torch.Tensor) and value.is_floating_point()
                else None
            )
            entry = ops.ledger.entries.get(storage._cdata) if storage is not None else None
            if entry is not None and recording.may_be_bad(entry.last):
                owner = recording.parameter_names[owner_of(parameter)]
                found.append(Sink("state", entry.last, recording.end - 1, f"{owner}.{name}"))
    return found


def adds_to_last(
    recording: Recording, used: Sequence[int | None], last: Sequence[int | None]
) -> bool:
    """Whether the gradients of an optimizer step (rows) were added to those of its last step:
    nobody had cleared them."""
    for now, before in zip(used, last, strict=False):
        row = recording.op(now) if now is not None and now >= 0 and before is not None else None
        if row is not None and row.name in ("add", "add_"):
            return before in recording.parents(now)  # type: ignore[arg-type]
    return False


def earliest_of(
    recording: Recording, used: Sequence[int | None], start: int, written: set[int]
) -> int:
    """The first row from ``start`` on that gradients were computed from, not by way of parameters
    and buffers (``written``); -1 without any."""
    own = [row for row in used if row is not None and row >= start]
    made = walk(
        own,
        lambda at: (p for p in recording.parents(at) if p >= start and p not in written),
        MOST_VISITS,
    )
    return min(made, default=-1)


def number_of(value: Any) -> float | None:
    """A setting of an optimizer as a number; None if it is none."""
    try:
        return float(value)
    except (TypeError, ValueError):
        return None


def _shrunk_most(rows: StepRows, steps: list[ParameterStep]) -> ParameterStep | None:
    inside = [s for s in steps if s.gradient is not None and s.gradient >= rows.start]
    if not inside:
        return None
    before: npt.NDArray[np.int64] = np.array([s.gradient for s in inside], np.int64) - rows.start
    after: npt.NDArray[np.int64] = np.array([s.used for s in inside], np.int64) - rows.start
    rms = rows.numbers["rms"]
    with np.errstate(divide="ignore", invalid="ignore"):
        ratio = rms[after] / rms[before]
    return inside[int(np.argmin(np.where(np.isfinite(ratio), ratio, np.inf)))]


def _way_back(
    recording: Recording, step: ParameterStep, factor: float
) -> tuple[float, Place | None, bool]:
    """(scale divided out, last other operation that made the gradient smaller or larger, whether by
    a Python number)."""
    assert step.used is not None and step.gradient is not None
    scale, at, constant = 1.0, -1, False
    position = step.used
    for _ in range(MOST_HOPS):
        row = recording.op(position)
        if row is None or position <= step.gradient:
            break
        op, source = row.name, _source(recording, position, row.output, step.gradient)
        ratio = _ratio(recording, source, position)
        if op == UNSCALES or (op in FACTORS and factor > 2.0 and abs(ratio / factor - 1.0) < NEAR):
            scale *= _power_of_two(ratio)
        elif at < 0 and op in CLAMPS | FACTORS:
            at, constant = position, bool(row.scaled)
        if source < 0:
            break
        position = source
    return scale, place_of(recording, at) if at >= 0 else None, constant


def _source(recording: Recording, position: int, output: int, gradient: int) -> int:
    """The operand that a changed gradient was made from; -1 if it is none of the gradient's."""
    operands = recording.operands(position)
    row = recording.op(position)
    copied = row is not None and row.name in ("copy_", "_foreach_copy_")
    slots = {slot: source for source, slot in operands if source >= gradient}
    if copied and (sources := [s for slot, s in slots.items() if slot != output and s > gradient]):
        return sources[0]
    return slots.get(output, next(iter(slots.values()), -1))


def _ratio(recording: Recording, before: int, after: int) -> float:
    """By how much larger the rms was before; 1 where that cannot be told."""
    old, new = recording.stats(before) if before >= 0 else None, recording.stats(after)
    return old.rms / new.rms if old is not None and new is not None and old.rms and new.rms else 1.0


def _power_of_two(ratio: float) -> float:
    """The power of two beside a measured ratio, if it is one but for rounding."""
    near: float = 2.0 ** round(math.log2(ratio)) if 0.0 < ratio < math.inf else 1.0
    return near if abs(ratio / near - 1.0) < NEAR else ratio
