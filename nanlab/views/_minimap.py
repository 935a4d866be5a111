"""All steps of a run as a picture: a row a step, a column an operation, one pixel each; a part of
it enlarged."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from nanlab.trace.locations import location
from nanlab.views._charts import pixels
from nanlab.views._html import escape, plural

if TYPE_CHECKING:
    from nanlab.trace import Trace
    from nanlab.trace.recording import Recording

UNSEEN, FINE, FLUSHED, BAD = range(4)
PALETTE = [(128, 128, 128, 0), (128, 128, 128, 60), (222, 145, 30, 255), (217, 60, 52, 255)]
WIDEST = 900  # columns; neighbours share one beyond that, which shows the worst of them
PHASES = {"forward": 0, "backward": 1, "optimizer": 2, "recompute": 3, "other": 4}
Cells = npt.NDArray[np.uint8]
WHOLE = (0.0, 1.0, 0.0, 1.0)


@dataclass(frozen=True)
class Part:
    """A rectangle of the picture: rows and columns, the last ones not in it."""

    top: int
    bottom: int
    left: int
    right: int

    @classmethod
    def of(cls, window: Sequence[float], rows: int, columns: int) -> Part:
        """window: left, right, top, bottom as shares of the whole picture."""
        left, right, top, bottom = (min(1.0, max(0.0, float(share))) for share in window)
        top_, left_ = min(int(top * rows), rows - 1), min(int(left * columns), columns - 1)
        bottom_ = max(top_ + 1, int(np.ceil(bottom * rows)))
        return cls(top_, bottom_, left_, max(left_ + 1, int(np.ceil(right * columns))))


def closed(recording: Recording) -> tuple[Cells, npt.NDArray[np.int64]]:
    """The steps that have ended: (steps, operations) of UNSEEN, FINE, FLUSHED (all zero, and not
    always) or BAD; the training step of each row."""
    series = recording.training.series
    table = series.table
    steps = np.array([recording.step_of(end - 1) for end in series.steps], np.int64)
    zero = np.isneginf(table)
    always = zero.all(axis=0) if len(table) else np.zeros(table.shape[1], bool)
    found = np.full(table.shape, FINE, np.uint8)
    found[np.isnan(table)] = UNSEEN
    found[zero & ~always] = FLUSHED
    found[np.isposinf(table)] = BAD
    return found, steps


def cells(trace: Trace) -> tuple[Cells, npt.NDArray[np.int64]]:
    """The same of a whole run: the last step is in it though it did not end."""
    recording = getattr(trace, "recording", None)
    if recording is None:
        return np.zeros((0, 0), np.uint8), np.zeros(0, np.int64)
    found, steps = closed(recording)
    if not len(trace.ops):
        return found, steps
    last = int(trace.ops["step"].max())
    if not len(steps) or last > steps[-1]:
        row = np.zeros(found.shape[1], np.uint8)
        for column, (_, is_bad) in by_column(trace, last).items():
            row[column] = BAD if is_bad else FINE
        found, steps = np.vstack([found, row]), np.append(steps, last)
    return found, steps


def by_column(trace: Trace, step: int) -> dict[int, tuple[int, bool]]:
    """Position of the row of a kept step in each column, and whether it is bad: a row belongs to
    the column of its line, operator, module and turn."""
    ops, recording = trace.ops, trace.recording
    names, files = recording.modules.items, recording.places
    turns: dict[tuple[object, ...], list[int]] = {}
    for column, place in enumerate(recording.training.series.places):
        key = (place.op, place.phase, names[place.module], *files[place.line][:2])
        turns.setdefault(key, []).append(column)
    rows = ops[(ops["step"] == step).to_numpy(dtype=bool)]
    bad = rows[["nan", "posinf", "neginf"]].fillna(0).sum(axis=1).to_numpy() > 0
    seen = zip(
        rows.index,
        rows["op"],
        rows["phase"],
        rows["module"],
        rows["file"],
        rows["line"],
        bad,
        strict=True,
    )
    found = {}
    for position, op, phase, module, file, line, is_bad in seen:
        waiting = turns.get((op, PHASES.get(str(phase), 4), module, file, int(line)))
        if waiting:
            found[waiting.pop(0)] = int(position), bool(is_bad)
    return found


def position_at(trace: Trace, across: float, down: float) -> int | None:
    """The row of ``trace.ops`` at a point of the picture, both as shares of the whole; of a step
    that was not kept, the same operation of the last one."""
    found, steps = cells(trace)
    if not found.size:
        return None
    part = Part.of((across, across, down, down), *found.shape)
    kept = set(trace.ops["step"].tolist())
    step = int(steps[part.top])
    there = by_column(trace, step if step in kept else max(kept, default=step))
    near = min(there, key=lambda column: abs(column - part.left), default=None)
    return None if near is None else there[near][0]


def minimap(trace: Trace, window: Sequence[float] = WHOLE) -> str:
    """The picture with its legend, or the part of it that a window shows; "" with fewer than two
    steps."""
    found, steps = cells(trace)
    if len(steps) < 2 or not found.shape[1]:
        return ""
    part = Part.of(window, *found.shape)
    shown = found[part.top : part.bottom, part.left : part.right]
    bad = plural(int((shown == BAD).sum()), "result")
    told = f"{_range(steps, part)} by {plural(shown.shape[1], 'result')}: {bad} not finite"
    height = min(150, max(30, 4 * len(steps)))
    legend = (
        "One pixel a result: steps downward, the operations of a step across. Grey: finite; amber:"
        " all zero; red: not finite."
        if tuple(window) == WHOLE
        else f"{_range(steps, part)}, {_places(trace, part)}: {bad} not finite."
    )
    share = ",".join(f"{each:.6g}" for each in window)
    return (
        f'<div class="nl-minimap" data-window="{share}">'
        f"{pixels(narrowed(shown), PALETTE, escape(told), height)}"
        f'<div class="nl-dim nl-legend" role="status">{escape(legend)}</div></div>'
    )


def _range(steps: npt.NDArray[np.int64], part: Part) -> str:
    first, last = steps[part.top], steps[part.bottom - 1]
    return f"Step {first}" if first == last else f"Steps {first} to {last}"


def _places(trace: Trace, part: Part) -> str:
    """``In[2]:4 to In[2]:7``: the lines of the first and the last column."""
    recording = trace.recording
    places = recording.training.series.places
    ends = [recording.places[places[at].line] for at in (part.left, part.right - 1)]
    first, last = (location(file, line) for file, line, *_ in ends)
    return first if first == last else f"{first} to {last}"


def narrowed(found: Cells) -> Cells:
    """At most WIDEST columns, each the worst of those that it stands for."""
    width = found.shape[1]
    if width <= WIDEST:
        return found
    starts = np.linspace(0, width, WIDEST, endpoint=False).astype(int)
    narrow: Cells = np.maximum.reduceat(found, starts, axis=1)
    return narrow
